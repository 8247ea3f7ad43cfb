// Command githttp serves a folder of bare Git repositories over smart HTTP, by
// running `git http-backend` for each request. Anybody who reaches it may fetch
// and push, so it listens on loopback unless told otherwise.
package main

import (
	"flag"
	"io"
	"log"
	"net/http"
	"net/http/cgi"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	addr := flag.String("addr", "127.0.0.1:0", "address to listen on")
	root := flag.String("root", "", "folder that holds the bare repositories")
	flag.Parse()
	if *root == "" {
		log.Fatal("usage: githttp -root FOLDER [-addr HOST:PORT]")
	}
	handler, err := newHandler(*root)
	if err != nil {
		log.Fatal("githttp: ", err)
	}
	log.Printf("serving %s on http://%s", *root, *addr)
	log.Fatal(http.ListenAndServe(*addr, handler))
}

func newHandler(root string) (http.Handler, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	if root, err = filepath.Abs(root); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		// CGI needs the length of the body, and git sends long ones chunked.
		if r.ContentLength < 0 {
			body, length, err := spool(r.Body)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			defer body.Close()
			r.Body, r.ContentLength, r.TransferEncoding = body, length, nil
		}
		backend := &cgi.Handler{
			Path: git,
			Args: []string{"http-backend"},
			Dir:  root,
			Env: []string{
				"GIT_PROJECT_ROOT=" + root,
				"GIT_HTTP_EXPORT_ALL=1",
				// net/http/cgi turns Content-Encoding into
				// HTTP_CONTENT_ENCODING, but this one git wants as it is.
				"GIT_PROTOCOL=" + r.Header.Get("Git-Protocol"),
				// Folders may belong to whoever made them, and pushing
				// without a user name is off by default.
				"GIT_CONFIG_COUNT=2",
				"GIT_CONFIG_KEY_0=safe.directory", "GIT_CONFIG_VALUE_0=*",
				"GIT_CONFIG_KEY_1=http.receivepack", "GIT_CONFIG_VALUE_1=true",
			},
			InheritEnv: []string{"HOME"},
			Stderr:     os.Stderr,
		}
		log.Printf("%s %s", r.Method, strings.ReplaceAll(r.URL.RequestURI(), "\n", ""))
		backend.ServeHTTP(w, r)
	})
	return mux, nil
}

// spool copies a body of unknown length to an unlinked file.
func spool(body io.Reader) (*os.File, int64, error) {
	file, err := os.CreateTemp("", "githttp-")
	if err != nil {
		return nil, 0, err
	}
	os.Remove(file.Name())
	length, err := io.Copy(file, body)
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		file.Close()
		return nil, 0, err
	}
	return file, length, nil
}
