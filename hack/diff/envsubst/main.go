// Command envsubst answers what Flux makes of a template or of an object: the
// reference that the substitution of stageset-controller is compared with.
//
// It reads one JSON question a line from standard input and writes one JSON
// answer a line to standard output, in the same order:
//
//	{"template": "a ${x}", "vars": {"x": "1"}, "strict": true}
//	{"object": {"apiVersion": "v1", ...}, "vars": {"x": "1"}, "strict": true}
//
// An answer has one of "output" (text), "object", "error", "panic" and, where
// the text is not UTF-8 any more, "broken".
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"unicode/utf8"

	"github.com/fluxcd/pkg/envsubst"
	"github.com/fluxcd/pkg/kustomize"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/kustomize/api/provider"
	"sigs.k8s.io/kustomize/api/resource"
)

type question struct {
	Template *string           `json:"template"`
	Object   json.RawMessage   `json:"object"`
	Vars     map[string]string `json:"vars"`
	Strict   bool              `json:"strict"`
}

type answer struct {
	Output *string         `json:"output,omitempty"`
	Object json.RawMessage `json:"object,omitempty"`
	Error  string          `json:"error,omitempty"`
	Panic  string          `json:"panic,omitempty"`
	Broken bool            `json:"broken,omitempty"`
}

func main() {
	factory := provider.NewDefaultDepProvider().GetResourceFactory()
	in := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	decoder := json.NewDecoder(in)
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	for decoder.More() {
		var q question
		if err := decoder.Decode(&q); err != nil {
			log.Fatal(err)
		}
		if err := encoder.Encode(reply(factory, q)); err != nil {
			log.Fatal(err)
		}
		if err := out.Flush(); err != nil {
			log.Fatal(err)
		}
	}
}

func reply(factory *resource.Factory, q question) (a answer) {
	defer func() {
		if cause := recover(); cause != nil {
			a = answer{Panic: fmt.Sprint(cause)}
		}
	}()
	if q.Template != nil {
		return text(q)
	}
	return object(factory, q)
}

func text(q question) answer {
	output, err := envsubst.Eval(*q.Template, func(name string) (string, bool) {
		value, known := q.Vars[name]
		return value, known || !q.Strict
	})
	switch {
	case err != nil:
		return answer{Error: err.Error()}
	case !utf8.ValidString(output):
		return answer{Broken: true}
	}
	return answer{Output: &output}
}

func object(factory *resource.Factory, q question) answer {
	res, err := factory.FromBytes(q.Object)
	if err != nil {
		log.Fatalf("the object itself cannot be read: %v", err)
	}
	vars := map[string]any{}
	for name, value := range q.Vars {
		vars[name] = value
	}
	owner := unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"postBuild": map[string]any{"substitute": vars}},
	}}
	changed, err := kustomize.SubstituteVariables(context.Background(), nil, owner, res,
		kustomize.SubstituteWithDryRun(true), kustomize.SubstituteWithStrict(q.Strict))
	if err != nil {
		return answer{Error: err.Error()}
	}
	if changed == nil {
		// The object has opted out.
		changed = res
	}
	written, err := changed.MarshalJSON()
	if err != nil {
		return answer{Error: err.Error()}
	}
	return answer{Object: written}
}
