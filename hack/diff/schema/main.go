// Command schema prints the merge lists of the OpenAPI document embedded in kustomize, in the format that
// src/manifest/kustomize/schema.txt has:
//
//	K <apiVersion> <kind> <node>      a kind and the node that describes it
//	D <definition> <node>             a definition other documents may refer to
//	N <node> <field>=<node> ...       a mapping; "*" stands for every other key
//	L <node> <element> <key,key|->    a list; "-" keys: primitive; "." keys: replaced as a whole
//
// Only nodes that lead to a merged list are printed.
package main

import (
	"bufio"
	"fmt"
	"os"
	"sort"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

type node struct {
	fields  map[string]int
	element int
	keys    string
	list    bool
	merges  bool
}

type walker struct {
	definitions map[string]spec.Schema
	byName      map[string]int
	nodes       []*node
}

func (w *walker) resolve(s *spec.Schema) int {
	if ref := s.Ref.String(); ref != "" {
		name := strings.TrimPrefix(ref, "#/definitions/")
		if id, known := w.byName[name]; known {
			return id
		}
		id := w.add()
		w.byName[name] = id
		definition := w.definitions[name]
		w.fill(id, &definition)
		return id
	}
	id := w.add()
	w.fill(id, s)
	return id
}

func (w *walker) add() int {
	w.nodes = append(w.nodes, &node{fields: map[string]int{}, element: -1, keys: "."})
	return len(w.nodes) - 1
}

func (w *walker) fill(id int, s *spec.Schema) {
	n := w.nodes[id]
	if len(s.Type) == 1 && s.Type[0] == "array" {
		n.list = true
		if s.Items != nil && s.Items.Schema != nil {
			n.element = w.resolve(s.Items.Schema)
		}
		strategy, _ := s.Extensions.GetString("x-kubernetes-patch-strategy")
		for _, part := range strings.Split(strategy, ",") {
			if part == "merge" {
				n.keys = keys(s)
			}
		}
		return
	}
	for name := range s.Properties {
		property := s.Properties[name]
		n.fields[name] = w.resolve(&property)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		n.fields["*"] = w.resolve(s.AdditionalProperties.Schema)
	}
}

func keys(s *spec.Schema) string {
	if list, ok := s.Extensions["x-kubernetes-list-map-keys"].([]interface{}); ok {
		var names []string
		for _, name := range list {
			names = append(names, name.(string))
		}
		return strings.Join(names, ",")
	}
	if key, ok := s.Extensions.GetString("x-kubernetes-patch-merge-key"); ok {
		return key
	}
	return "-"
}

// mark finds the nodes that lead to a merged list: repeated until nothing changes, since types can be recursive.
func (w *walker) mark() {
	for changed := true; changed; {
		changed = false
		for _, n := range w.nodes {
			if n.merges {
				continue
			}
			found := n.list && n.keys != "."
			found = found || n.element >= 0 && w.nodes[n.element].merges
			for _, id := range n.fields {
				found = found || w.nodes[id].merges
			}
			n.merges, changed = found, changed || found
		}
	}
}

func main() {
	schema := openapi.Schema()
	w := &walker{definitions: schema.Definitions, byName: map[string]int{}}
	kinds := map[string]int{}
	var names []string
	for name := range schema.Definitions {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		definition := schema.Definitions[name]
		list, ok := definition.Extensions["x-kubernetes-group-version-kind"].([]interface{})
		if !ok {
			continue
		}
		reference := spec.RefSchema("#/definitions/" + name)
		for _, entry := range list {
			gvk := entry.(map[string]interface{})
			group, version, kind := gvk["group"].(string), gvk["version"].(string), gvk["kind"].(string)
			if group != "" {
				version = group + "/" + version
			}
			kinds[version+" "+kind] = w.resolve(reference)
		}
	}
	w.mark()
	write(w, kinds)
}

func write(w *walker, kinds map[string]int) {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	number := map[int]int{}
	var order []int
	var visit func(id int)
	visit = func(id int) {
		if _, seen := number[id]; seen || id < 0 || !w.nodes[id].merges {
			return
		}
		number[id] = len(order)
		order = append(order, id)
		n := w.nodes[id]
		visit(n.element)
		for _, field := range sorted(n.fields) {
			visit(n.fields[field])
		}
	}
	for _, kind := range sorted(kinds) {
		if w.nodes[kinds[kind]].merges {
			visit(kinds[kind])
			fmt.Fprintf(out, "K %s %d\n", kind, number[kinds[kind]])
		}
	}
	for _, name := range sorted(w.byName) {
		if id, printed := number[w.byName[name]]; printed {
			fmt.Fprintf(out, "D %s %d\n", name, id)
		}
	}
	for i, id := range order {
		n := w.nodes[id]
		if n.list {
			element := "-"
			if n.element >= 0 && w.nodes[n.element].merges {
				element = fmt.Sprint(number[n.element])
			}
			fmt.Fprintf(out, "L %d %s %s\n", i, element, n.keys)
			continue
		}
		fmt.Fprintf(out, "N %d", i)
		for _, field := range sorted(n.fields) {
			if target := n.fields[field]; w.nodes[target].merges {
				fmt.Fprintf(out, " %s=%d", field, number[target])
			}
		}
		fmt.Fprintln(out)
	}
}

func sorted(m map[string]int) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}
