// Command eventsink takes the place of Flux's notification-controller: it
// decodes each POSTed event with Flux's own types and appends it to a file, one
// JSON document a line. What does not decode is answered with 400 and kept in a
// second file together with the reason.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"sync"
	"time"

	eventv1 "github.com/fluxcd/pkg/apis/event/v1"
)

const (
	maxBody    = 1 << 20
	maxMessage = 39000 // the limit in Flux's own type
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on")
	accepted := flag.String("file", "", "file that decoded events are appended to")
	rejected := flag.String("rejected", "", "file that rejected requests are appended to")
	flag.Parse()
	if *accepted == "" || *rejected == "" {
		log.Fatal("usage: eventsink -file FILE -rejected FILE [-addr HOST:PORT]")
	}
	s := &sink{accepted: *accepted, rejected: *rejected}
	// Both files exist from the start, so that a reader need not wait for one.
	for _, path := range []string{s.accepted, s.rejected} {
		if err := s.append(path, nil); err != nil {
			log.Fatal("eventsink: ", err)
		}
	}
	log.Printf("taking events on http://%s into %s", *addr, *accepted)
	log.Fatal(http.ListenAndServe(*addr, s))
}

type sink struct {
	accepted, rejected string
	mu                 sync.Mutex
}

type rejection struct {
	ReceivedAt time.Time `json:"receivedAt"`
	Error      string    `json:"error"`
	Body       string    `json:"body"`
}

func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.URL.Path == "/healthz" {
		return
	}
	if r.Method != http.MethodPost {
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var event *eventv1.Event
	if err == nil {
		event, err = decode(body)
	}
	if err != nil {
		log.Printf("rejected: %v", err)
		if err := s.append(s.rejected, rejection{time.Now().UTC(), err.Error(), string(body)}); err != nil {
			log.Printf("recording the rejection: %v", err)
		}
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := s.append(s.accepted, event); err != nil {
		log.Printf("recording the event: %v", err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

// decode is stricter than Flux: a field its type does not have is most likely a
// misspelt one, and what its schema calls required has to be there. Only action
// may be missing, which the previous version of the type did not have.
func decode(body []byte) (*eventv1.Event, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.DisallowUnknownFields()
	event := &eventv1.Event{}
	if err := decoder.Decode(event); err != nil {
		return nil, err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON document")
	}
	switch event.Severity {
	case eventv1.EventSeverityTrace, eventv1.EventSeverityInfo, eventv1.EventSeverityError:
	default:
		return nil, fmt.Errorf("severity %q is none of trace, info, error", event.Severity)
	}
	if n := len([]rune(event.Message)); n > maxMessage {
		return nil, fmt.Errorf("message has %d characters, more than %d", n, maxMessage)
	}
	if event.Timestamp.IsZero() {
		return nil, errors.New("timestamp is missing")
	}
	for _, field := range []struct{ name, value string }{
		{"involvedObject.apiVersion", event.InvolvedObject.APIVersion},
		{"involvedObject.kind", event.InvolvedObject.Kind},
		{"involvedObject.namespace", event.InvolvedObject.Namespace},
		{"involvedObject.name", event.InvolvedObject.Name},
		{"message", event.Message},
		{"reason", event.Reason},
		{"reportingController", event.ReportingController},
	} {
		if field.value == "" {
			return nil, errors.New(field.name + " is missing")
		}
	}
	return event, nil
}

// append opens the file each time: a test may remove or truncate it in between.
func (s *sink) append(path string, value any) error {
	var line []byte
	if value != nil {
		var err error
		if line, err = json.Marshal(value); err != nil {
			return err
		}
		line = append(line, '\n')
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = file.Write(line)
	return errors.Join(err, file.Close())
}
