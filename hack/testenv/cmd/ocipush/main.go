// Command ocipush pushes a folder as a Flux OCI artifact to a plain-http
// registry and prints the digest of its manifest. The same folder always gives
// the same digest.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.cncf.flux.config.v1+json"
	layerType    = "application/vnd.cncf.flux.content.v1.tar+gzip"
)

type descriptor struct {
	MediaType string `json:"mediaType"`
	Digest    string `json:"digest"`
	Size      int    `json:"size"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type pairs map[string]string

func (p pairs) String() string { return "" }

func (p pairs) Set(pair string) error {
	key, value, ok := strings.Cut(pair, "=")
	if !ok {
		return errors.New("not KEY=VALUE")
	}
	p[key] = value
	return nil
}

func main() {
	annotations := pairs{
		"org.opencontainers.image.created":  time.Unix(0, 0).UTC().Format(time.RFC3339),
		"org.opencontainers.image.source":   "testenv",
		"org.opencontainers.image.revision": "testenv",
	}
	layer := flag.String("layer-type", layerType, "media type of the layer")
	config := flag.String("config-type", configType, "media type of the config")
	flag.Var(annotations, "annotation", "KEY=VALUE for the manifest; may be given several times")
	flag.Parse()
	if flag.NArg() != 2 {
		fmt.Fprintln(os.Stderr, "usage: ocipush [-annotation KEY=VALUE] HOST:PORT/REPOSITORY:TAG FOLDER|FILE.tar.gz")
		os.Exit(2)
	}
	digest, err := push(flag.Arg(0), flag.Arg(1), *layer, *config, annotations)
	if err != nil {
		fmt.Fprintln(os.Stderr, "ocipush:", err)
		os.Exit(1)
	}
	fmt.Println(digest)
}

func push(reference, path, layer, config string, annotations map[string]string) (string, error) {
	host, rest, ok := strings.Cut(reference, "/")
	repository, tag, tagged := strings.Cut(rest, ":")
	if !ok || !tagged || repository == "" || tag == "" {
		return "", fmt.Errorf("%q is not HOST:PORT/REPOSITORY:TAG", reference)
	}
	base := "http://" + host + "/v2/" + repository

	content, err := archive(path)
	if err != nil {
		return "", err
	}
	m := manifest{SchemaVersion: 2, MediaType: manifestType, Annotations: annotations}
	if m.Config, err = upload(base, config, []byte("{}")); err != nil {
		return "", err
	}
	l, err := upload(base, layer, content)
	if err != nil {
		return "", err
	}
	m.Layers = []descriptor{l}

	body, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	if _, err := call(http.MethodPut, base+"/manifests/"+tag, manifestType, body, http.StatusCreated); err != nil {
		return "", err
	}
	return digestOf(body), nil
}

// upload sends a blob in one piece.
func upload(base, mediaType string, blob []byte) (descriptor, error) {
	d := descriptor{mediaType, digestOf(blob), len(blob)}
	session, err := call(http.MethodPost, base+"/blobs/uploads/", "", nil, http.StatusAccepted)
	if err != nil {
		return d, err
	}
	query := session.Query()
	query.Set("digest", d.Digest)
	session.RawQuery = query.Encode()
	_, err = call(http.MethodPut, session.String(), "application/octet-stream", blob, http.StatusCreated)
	return d, err
}

// call returns where the answer says to go next.
func call(method, target, contentType string, body []byte, want int) (*url.URL, error) {
	request, err := http.NewRequest(method, target, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != want {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 4096))
		return nil, fmt.Errorf("%s %s: %s: %s", method, target, response.Status, text)
	}
	location, err := response.Location()
	if errors.Is(err, http.ErrNoLocation) {
		return nil, nil
	}
	return location, err
}

func digestOf(data []byte) string {
	return fmt.Sprintf("sha256:%x", sha256.Sum256(data))
}

func archive(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return os.ReadFile(path)
	}
	var out bytes.Buffer
	zip := gzip.NewWriter(&out)
	tarball := tar.NewWriter(zip)
	// WalkDir goes in lexical order, and headers carry neither time nor owner.
	err = filepath.WalkDir(path, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || file == path {
			return err
		}
		name, err := filepath.Rel(path, file)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), Mode: int64(info.Mode().Perm()), ModTime: time.Unix(0, 0)}
		switch {
		case entry.IsDir():
			header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
			return tarball.WriteHeader(header)
		case info.Mode()&fs.ModeSymlink != 0:
			header.Typeflag = tar.TypeSymlink
			if header.Linkname, err = os.Readlink(file); err != nil {
				return err
			}
			return tarball.WriteHeader(header)
		case info.Mode().IsRegular():
			data, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			header.Typeflag, header.Size = tar.TypeReg, int64(len(data))
			if err := tarball.WriteHeader(header); err != nil {
				return err
			}
			_, err = tarball.Write(data)
			return err
		default:
			return fmt.Errorf("%s is neither file, folder nor link", file)
		}
	})
	if err != nil {
		return nil, err
	}
	if err := errors.Join(tarball.Close(), zip.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
