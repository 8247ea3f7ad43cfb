// Command krusty builds a folder with kustomize as a library, again and again, and prints the median of the times
// in microseconds. Order as Flux has it: accumulation.
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: krusty DIR TIMES")
		os.Exit(2)
	}
	times, err := strconv.Atoi(os.Args[2])
	check(err)
	var taken []time.Duration
	for range times {
		begin := time.Now()
		build(os.Args[1])
		taken = append(taken, time.Since(begin))
	}
	slices.Sort(taken)
	fmt.Println(taken[len(taken)/2].Microseconds())
}

func build(dir string) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionNone
	options.LoadRestrictions = types.LoadRestrictionsNone
	result, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	check(err)
	_, err = result.AsYaml()
	check(err)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
