package local

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// StartPawl starts a cluster of three nodes with the given pawl program. It blocks until all are ready or ctx ends. The
// caller stops it. Its Address is the list of endpoints, with commas between them.
func StartPawl(ctx context.Context, program string) (_ *Server, err error) {
	const nodes, attempts = 3, 5
	for range attempts {
		port, free := freePorts(nodes)
		if !free {
			continue
		}
		dir, err := os.MkdirTemp("", "pawl")
		if err != nil {
			return nil, err
		}
		s := &Server{dir: dir, quit: syscall.SIGTERM}
		var endpoints []string
		for i := range nodes {
			endpoints = append(endpoints, fmt.Sprintf("http://127.0.0.1:%d", port+i))
		}
		s.Address = strings.Join(endpoints, ",")
		s.command = exec.Command(program, "dev", "--nodes", strconv.Itoa(nodes), "--port", strconv.Itoa(port), "--data", filepath.Join(dir, "data"))
		if err := s.start(ctx, func() error { return ready(ctx, endpoints) }); err != nil {
			s.Stop()
			return nil, err
		}
		return s, nil
	}
	return nil, fmt.Errorf("no free ports were found for a cluster")
}

// freePorts finds ports for the nodes' API, with those of their peers a hundred above.
func freePorts(count int) (int, bool) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, false
	}
	base := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	const peers = 100
	if base+peers+count > 65535 {
		return 0, false
	}
	for i := range count {
		for _, port := range []int{base + i, base + peers + i} {
			listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return 0, false
			}
			listener.Close()
		}
	}
	return base, true
}

func ready(ctx context.Context, endpoints []string) error {
	for _, endpoint := range endpoints {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, endpoint+"/readyz", nil)
		if err != nil {
			return err
		}
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s is not ready: %s", endpoint, answer.Status)
		}
	}
	return nil
}
