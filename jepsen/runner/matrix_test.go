package runner

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMatrix(t *testing.T) {
	path := filepath.Join(t.TempDir(), "results.jsonl")
	lines := []string{
		`{"spec":{"workload":"mutex","fault":"mixed","cluster":"virtual","nodes":3},"outcome":"valid","operations":700,"took":600000000000}`,
		`{"spec":{"workload":"mutex","fault":"mixed","cluster":"virtual","nodes":3},"outcome":"invalid","operations":11,"took":600000000000}`,
		`{"spec":{"workload":"rw","fault":"kill-one","cluster":"virtual","nodes":3},"outcome":"valid","operations":5,"took":600000000000}`,
		`{"spec":{"workload":"unfenced","fault":"kill-one+delay","cluster":"processes","nodes":5},"outcome":"valid","operations":9,"took":60000000000,"lost":4}`,
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := Matrix(&out, []string{path}); err != nil {
		t.Fatal(err)
	}
	want := `| processes, 5 nodes | unfenced | time |
|---|---|---|
| kill-one+delay | 9, 4 lost | 1m0s |

| virtual, 3 nodes | mutex | rw | time |
|---|---|---|---|
| kill-one | – | 5 | 10m0s |
| mixed | 2 × 711 **1 invalid** | – | 20m0s |

`
	if out.String() != want {
		t.Errorf("matrix\n%s\nwant\n%s", out.String(), want)
	}
	if err := Matrix(&out, []string{filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a file that is not there makes a matrix")
	}
}
