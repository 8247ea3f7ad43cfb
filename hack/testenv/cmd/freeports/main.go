// Command freeports prints N loopback ports that nothing listens on, one a
// line. Ports are taken from below the range the kernel hands out for outgoing
// connections, so that no client socket takes one before its server starts.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"strings"
)

const first, last = 20000, 31999

func main() {
	prefer := flag.String("prefer", "", "space-separated ports to take where they are free")
	avoid := flag.String("avoid", "", "space-separated ports never to take")
	flag.Parse()
	n, err := strconv.Atoi(flag.Arg(0))
	if err != nil || n < 1 || n > 1000 {
		fmt.Fprintln(os.Stderr, "usage: freeports [-prefer 'PORT ...'] [-avoid 'PORT ...'] N")
		os.Exit(2)
	}

	taken := map[int]bool{}
	for _, port := range ports(*avoid) {
		taken[port] = true
	}
	// Each port stays bound until all are found, or one would come up twice.
	preferred := ports(*prefer)
	for i := range n {
		port := 0
		if i < len(preferred) && !taken[preferred[i]] && bind(preferred[i]) {
			port = preferred[i]
		}
		for try := 0; port == 0; try++ {
			if try == 10000 {
				fmt.Fprintf(os.Stderr, "freeports: no free port between %d and %d\n", first, last)
				os.Exit(1)
			}
			candidate := first + rand.IntN(last-first+1)
			if !taken[candidate] && bind(candidate) {
				port = candidate
			}
		}
		taken[port] = true
		fmt.Println(port)
	}
}

// held keeps listeners from being closed by the garbage collector.
var held []net.Listener

func bind(port int) bool {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err == nil {
		held = append(held, listener)
	}
	return err == nil
}

func ports(list string) []int {
	var out []int
	for field := range strings.FieldsSeq(list) {
		port, err := strconv.Atoi(field)
		if err != nil {
			fmt.Fprintf(os.Stderr, "freeports: %q is not a port\n", field)
			os.Exit(2)
		}
		out = append(out, port)
	}
	return out
}
