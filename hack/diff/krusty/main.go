package main
import (
	_ "sigs.k8s.io/kustomize/api/krusty"
)
func main(){}
