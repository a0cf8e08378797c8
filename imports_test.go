package pawl_test

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/pawl-lock/pawl"

// mayImport is the order of the house, from the top down: what each folder may import of the others. A folder that is
// not here belongs to none of them and is refused until somebody has thought about where it stands. (Tests may reach
// further: they look from outside.)
var mayImport = map[string][]string{
	"transport": {},
	"fsm":       {},
	"client":    {"transport"},
	// The fencing kits, each in a folder of its own: a client needs none of them.
	"client/fence": {"client", "transport"},
	"server":       {"fsm", "transport"},
	// Of transport it needs the words of the wire: the client's calls take and give its messages.
	"cmd":      {"server", "client", "transport"},
	"examples": {"client", "client/fence", "transport", "examples/local"},
	// Databases to try things on, for who needs a real one.
	"examples/local": {},
	"jepsen":         {"client", "client/fence", "server", "transport", "examples/local"},
}

func TestImportsGoDownwardsOnly(t *testing.T) {
	packages := listPackages(t)
	if len(packages) < 5 {
		t.Fatalf("only %d packages were found: %v", len(packages), packages)
	}
	for _, p := range packages {
		from := folder(p.ImportPath)
		allowed, known := mayImport[from]
		if !known && len(p.GoFiles) > 0 {
			t.Errorf("%s: folder %q has no place in the order of imports", p.ImportPath, from)
			continue
		}
		for _, imported := range p.Imports {
			if to := folder(imported); to != "" && to != from && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: %s may import only %v", p.ImportPath, imported, from, allowed)
			}
		}
	}
}

// Nothing may be decided by a wall clock (R4): it is turned into a number only where people are told the time, and times are
// compared as time.Time, which carries the monotonic clock.
func TestWallClocksAreOnlyShown(t *testing.T) {
	shown := map[string]bool{"server/proposer.go": true, "server/events.go": true} // what events tell
	any, others := regexp.MustCompile(`\.Unix(Nano|Milli|Micro)?\(\)`), regexp.MustCompile(`\.Unix(Nano|Micro)?\(\)`)
	for _, dir := range []string{"server", "transport", "client"} {
		err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			call := any
			if shown[path] { // in milliseconds
				call = others
			}
			if found := call.Find(text); found != nil {
				t.Errorf("%s has %s", path, found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// The state machine must be a pure function (R1): it has no business with the clock, the network, the disk or chance.
func TestStateMachineHasNoOutsideWorld(t *testing.T) {
	forbidden := []string{"time", "net", "net/http", "os", "math/rand", "math/rand/v2", "crypto/rand", "sync/atomic"}
	for _, p := range listPackages(t) {
		if p.ImportPath != module+"/fsm" {
			continue
		}
		for _, imported := range p.Imports {
			if slices.Contains(forbidden, imported) {
				t.Errorf("fsm imports %s", imported)
			}
		}
		return
	}
	t.Fatal("there is no package fsm")
}

// The client must not bring any module into its users' programs.
func TestClientNeedsOnlyTheStandardLibrary(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./client").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	if got := strings.Fields(string(out)); !slices.Equal(got, []string{module + "/transport", module + "/client"}) {
		t.Errorf("client needs %v", got)
	}
}

type goPackage struct {
	ImportPath string
	GoFiles    []string
	Imports    []string
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	out, err := exec.Command("go", "list", "-json=ImportPath,GoFiles,Imports", "./...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("reading the answer of go list: %v", err)
		}
		packages = append(packages, p)
	}
}

// A fencing kit is used inside somebody else's program: it brings along no more than its storage takes.
func TestFencingKitsAreLight(t *testing.T) {
	outside := map[string][]string{
		"/boltfence": {"go.etcd.io/bbolt"},
		"/filefence": {"golang.org/x/sys/unix"},
	}
	seen := 0
	for _, p := range listPackages(t) {
		kit, found := strings.CutPrefix(p.ImportPath, module+"/client/fence")
		if !found {
			continue
		}
		seen++
		for _, imported := range p.Imports {
			first, _, _ := strings.Cut(imported, "/")
			ours := imported == module+"/client" || imported == module+"/transport" || folder(imported) == "client/fence"
			if strings.Contains(first, ".") && !ours && !slices.Contains(outside[kit], imported) {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
	if seen == 0 {
		t.Fatal("there is no package client/fence")
	}
}

// folder gives the first folder of one of our packages (that of the fencing kits is inside another), "" for others and
// for the module's root.
func folder(importPath string) string {
	inside, ours := strings.CutPrefix(importPath, module+"/")
	if !ours {
		return ""
	}
	if strings.HasPrefix(inside+"/", "client/fence/") {
		return "client/fence"
	}
	if inside == "examples/local" {
		return inside
	}
	first, _, _ := strings.Cut(inside, "/")
	return first
}
