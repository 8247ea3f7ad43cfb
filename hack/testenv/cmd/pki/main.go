// Command pki writes the keys and certificates one local control plane needs:
// a CA, a serving certificate for the API server signed by it, and the key
// pair that signs service account tokens. Files that are there and still valid
// are left alone, so that a kept data folder keeps its identity.
package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const lifetime = 10 * 365 * 24 * time.Hour

func main() {
	dir := flag.String("dir", "", "folder to write to")
	names := flag.String("names", "localhost,127.0.0.1", "comma-separated DNS names and IP addresses of the serving certificate")
	flag.Parse()
	if *dir == "" || flag.NArg() != 0 {
		fmt.Fprintln(os.Stderr, "usage: pki -dir FOLDER [-names NAME,IP,...]")
		os.Exit(2)
	}
	if err := run(*dir, strings.Split(*names, ",")); err != nil {
		fmt.Fprintln(os.Stderr, "pki:", err)
		os.Exit(1)
	}
}

func run(dir string, names []string) error {
	if complete(dir, names) {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	ca := template("testenv-ca")
	ca.IsCA = true
	ca.BasicConstraintsValid = true
	ca.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return err
	}
	// Parsed again so that the serving certificate names the CA's key id.
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return err
	}

	serverKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	server := template("kube-apiserver")
	server.KeyUsage = x509.KeyUsageDigitalSignature
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			server.IPAddresses = append(server.IPAddresses, ip)
		} else {
			server.DNSNames = append(server.DNSNames, name)
		}
	}
	serverDER, err := x509.CreateCertificate(rand.Reader, server, ca, serverKey.Public(), caKey)
	if err != nil {
		return err
	}

	accountKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	accountPub, err := x509.MarshalPKIXPublicKey(accountKey.Public())
	if err != nil {
		return err
	}

	// The serving certificate goes last: complete() looks for it.
	steps := []func() error{
		func() error { return writeKey(filepath.Join(dir, "ca.key"), caKey) },
		func() error { return writePEM(filepath.Join(dir, "ca.crt"), "CERTIFICATE", caDER, 0o644) },
		func() error { return writeKey(filepath.Join(dir, "service-account.key"), accountKey) },
		func() error {
			return writePEM(filepath.Join(dir, "service-account.pub"), "PUBLIC KEY", accountPub, 0o644)
		},
		func() error { return writeKey(filepath.Join(dir, "apiserver.key"), serverKey) },
		func() error {
			return writePEM(filepath.Join(dir, "apiserver.crt"), "CERTIFICATE", serverDER, 0o644)
		},
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// complete tells whether dir holds a whole set whose serving certificate is
// signed by its CA, covers all names and is good for another month.
func complete(dir string, names []string) bool {
	for _, name := range []string{"ca.key", "service-account.key", "service-account.pub", "apiserver.key"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return false
		}
	}
	ca, err := readCert(filepath.Join(dir, "ca.crt"))
	if err != nil {
		return false
	}
	server, err := readCert(filepath.Join(dir, "apiserver.crt"))
	if err != nil {
		return false
	}
	for _, name := range names {
		if server.VerifyHostname(name) != nil {
			return false
		}
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	_, err = server.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now().Add(30 * 24 * time.Hour)})
	return err == nil
}

func readCert(path string) (*x509.Certificate, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("no PEM block in " + path)
	}
	return x509.ParseCertificate(block.Bytes)
}

func template(name string) *x509.Certificate {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err)
	}
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(lifetime),
	}
}

func writeKey(path string, key any) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(path, "PRIVATE KEY", der, 0o600)
}

func writePEM(path, kind string, der []byte, mode os.FileMode) error {
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
