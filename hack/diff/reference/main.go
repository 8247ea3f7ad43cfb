// Command reference answers what kustomize and Go's YAML libraries make of files and texts: what the engine, the
// reader and the writer of stageset-controller are compared with.
//
// It reads one JSON question a line from standard input and writes one JSON answer a line to standard output, in the
// same order:
//
//	{"build": "DIR", "reorder": "none"}   the objects as YAML text in "text"; "legacy" is the other order
//	{"read": "a: 1", "rules": "kustomize"} the first document in "value", as kustomize reads resources
//	{"read": "a: 1", "rules": "kubectl"}   the same by YAML 1.1 rules, as kustomization files are read
//	{"write": {"a": 1}, "by": "kustomize"} what kustomize prints of an object, in "text"
//	{"write": {"a": 1}, "by": "kyaml"}     the text of kustomize's own tree
//
// An answer has "error" or "panic" where there is nothing else to give.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"os"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	kyaml "sigs.k8s.io/kustomize/kyaml/yaml"
	"sigs.k8s.io/yaml"
)

type question struct {
	Build   *string         `json:"build"`
	Reorder string          `json:"reorder"`
	Read    *string         `json:"read"`
	Rules   string          `json:"rules"`
	Write   json.RawMessage `json:"write"`
	By      string          `json:"by"`
}

type answer struct {
	Text  *string         `json:"text,omitempty"`
	Value json.RawMessage `json:"value,omitempty"`
	Error string          `json:"error,omitempty"`
	Panic string          `json:"panic,omitempty"`
}

func main() {
	// Deprecations of what is built are no answer.
	log.SetOutput(os.Stderr)
	decoder := json.NewDecoder(bufio.NewReaderSize(os.Stdin, 1<<20))
	out := bufio.NewWriter(os.Stdout)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for decoder.More() {
		var q question
		if err := decoder.Decode(&q); err != nil {
			log.Fatal(err)
		}
		if err := encoder.Encode(reply(q)); err != nil {
			log.Fatal(err)
		}
		if err := out.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}

func reply(q question) (a answer) {
	defer func() {
		if cause := recover(); cause != nil {
			a = answer{Panic: fmt.Sprint(cause)}
		}
	}()
	var text []byte
	var err error
	switch {
	case q.Build != nil:
		text, err = build(*q.Build, q.Reorder)
	case q.Read != nil:
		value, err := read(*q.Read, q.Rules)
		if err != nil {
			return answer{Error: err.Error()}
		}
		return answer{Value: value}
	default:
		text, err = write(q.Write, q.By)
	}
	if err != nil {
		return answer{Error: err.Error()}
	}
	written := string(text)
	return answer{Text: &written}
}

func build(dir, reorder string) ([]byte, error) {
	options := krusty.MakeDefaultOptions()
	options.Reorder = krusty.ReorderOptionNone
	if reorder == "legacy" {
		options.Reorder = krusty.ReorderOptionLegacy
	}
	options.LoadRestrictions = types.LoadRestrictionsNone
	result, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		return nil, err
	}
	return result.AsYaml()
}

func read(text, rules string) ([]byte, error) {
	if rules == "kubectl" {
		return yaml.YAMLToJSON([]byte(text))
	}
	node, err := kyaml.Parse(text)
	if errors.Is(err, io.EOF) || (err == nil && node.IsTaggedNull()) {
		return []byte("null"), nil
	}
	if err != nil {
		return nil, err
	}
	return node.MarshalJSON()
}

func write(object []byte, by string) ([]byte, error) {
	if by == "kyaml" {
		var node kyaml.RNode
		if err := node.UnmarshalJSON(object); err != nil {
			return nil, err
		}
		text, err := node.String()
		return []byte(text), err
	}
	return yaml.JSONToYAML(object)
}
