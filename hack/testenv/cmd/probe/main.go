// Command probe waits until a URL answers 2xx, or for tcp://HOST:PORT until a
// connection is taken. It gives up at its deadline, or at once when the process
// it waits for is gone.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"
)

func main() {
	timeout := flag.Duration("timeout", 30*time.Second, "give up after this long; 0 tries once")
	ca := flag.String("ca", "", "file with the CA of an https URL")
	pid := flag.Int("pid", 0, "process that should answer: give up when it is gone")
	flag.Parse()
	if flag.NArg() != 1 {
		fmt.Fprintln(os.Stderr, "usage: probe [-timeout 30s] [-ca FILE] [-pid PID] URL")
		os.Exit(2)
	}
	if err := wait(flag.Arg(0), *ca, *pid, *timeout); err != nil {
		fmt.Fprintf(os.Stderr, "probe: %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

func wait(url, ca string, pid int, timeout time.Duration) error {
	transport := &http.Transport{}
	if ca != "" {
		data, err := os.ReadFile(ca)
		if err != nil {
			return err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(data) {
			return errors.New("no certificate in " + ca)
		}
		transport.TLSClientConfig = &tls.Config{RootCAs: pool}
	}
	client := &http.Client{Transport: transport, Timeout: 2 * time.Second}

	deadline := time.Now().Add(timeout)
	for {
		err := try(client, url)
		if err == nil {
			return nil
		}
		if pid != 0 && errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) {
			return fmt.Errorf("process %d is gone (last answer: %w)", pid, err)
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("not ready after %s: %w", timeout, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func try(client *http.Client, url string) error {
	if address, ok := strings.CutPrefix(url, "tcp://"); ok {
		conn, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return err
		}
		return conn.Close()
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode/100 != 2 {
		return errors.New("answered " + response.Status)
	}
	return nil
}
