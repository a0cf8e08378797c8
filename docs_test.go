package pawl_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The Go program in the README must be one.
func TestReadmeProgramCompiles(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, found := strings.Cut(string(readme), "```go\n")
	program, _, ended := strings.Cut(rest, "```")
	if !found || !ended {
		t.Fatal("README.md has no Go program")
	}
	path := filepath.Join(t.TempDir(), "main.go")
	if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("go", "vet", path).CombinedOutput(); err != nil {
		t.Errorf("go vet: %v\n%s", err, out)
	}
}

// Links between the documents must lead somewhere.
func TestDocumentsExist(t *testing.T) {
	for _, document := range []string{"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "docs/cli.md", "docs/dependencies.md", "docs/fencing.md", "docs/long-runs.md", "docs/metrics.md", "examples/README.md", "jepsen/README.md"} {
		content, err := os.ReadFile(document)
		if err != nil {
			t.Error(err)
			continue
		}
		for _, part := range strings.Split(string(content), "](")[1:] {
			target, _, _ := strings.Cut(part, ")")
			target, _, _ = strings.Cut(target, "#")
			if strings.Contains(target, "://") || target == "" {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(document), target)); err != nil {
				t.Errorf("%s links to %s: %v", document, target, err)
			}
		}
	}
}

// Every module that the code imports is in docs/dependencies.md, with the version that is used.
func TestDependenciesAreDocumented(t *testing.T) {
	document, err := os.ReadFile("docs/dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	imported := map[string]bool{}
	for _, p := range listPackages(t) {
		for _, path := range p.Imports {
			imported[path] = true
		}
	}
	arguments := []string{"list", "-f", "{{with .Module}}{{.Path}} {{.Version}} {{.Main}}{{end}}"}
	for path := range imported {
		arguments = append(arguments, path)
	}
	out, err := exec.Command("go", arguments...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	seen := 0
	for _, line := range strings.Split(string(out), "\n") {
		fields := strings.Fields(line)
		if len(fields) != 3 || fields[2] == "true" {
			continue
		}
		seen++
		if row := fmt.Sprintf("| %s | %s |", fields[0], fields[1]); !strings.Contains(string(document), row) {
			t.Errorf("docs/dependencies.md has no row that begins with %q", row)
		}
	}
	if seen == 0 {
		t.Error("no dependency was found")
	}
}
