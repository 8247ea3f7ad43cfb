package main
import (
	_ "github.com/fluxcd/pkg/envsubst"
)
func main(){}
