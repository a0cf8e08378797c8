package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the generated parts of docs/cli.md anew")

// The tables of docs/cli.md are made from the tables of the code.
func TestDocumentedTables(t *testing.T) {
	const path = "../../docs/cli.md"
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(content)
	for mark, table := range map[string]string{"exits": exitsTable(), "run exits": runExitsTable(), "settings": settingsTable()} {
		before, rest, found := strings.Cut(text, "<!-- "+mark+" -->\n")
		old, after, ended := strings.Cut(rest, "<!-- end -->")
		if !found || !ended {
			t.Fatalf("%s has no place for the %s", path, mark)
		}
		if old != table && !*rewrite {
			t.Errorf("the %s in %s are not those of the code; go test ./cmd/pawl -run TestDocumentedTables -rewrite", mark, path)
		}
		text = before + "<!-- " + mark + " -->\n" + table + "<!-- end -->" + after
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func exitsTable() string {
	rows := make([]string, len(exits()))
	for _, row := range exits() {
		var codes []string
		for _, code := range row.errors {
			codes = append(codes, "`"+string(code)+"`")
		}
		rows[row.code] = fmt.Sprintf("| %d | %s | %s |\n", row.code, row.meaning, strings.Join(codes, ", "))
	}
	return "| code | meaning | answers of the API |\n|---|---|---|\n" + strings.Join(rows, "")
}

func runExitsTable() string {
	var b strings.Builder
	b.WriteString("| code | meaning |\n|---|---|\n")
	for _, row := range runExits {
		fmt.Fprintf(&b, "| %d | %s |\n", row.code, row.meaning)
	}
	return b.String()
}

func settingsTable() string {
	var b strings.Builder
	b.WriteString("| flag | variable | key in the file | default | meaning |\n|---|---|---|---|---|\n")
	for _, s := range settings(&configuration{}) {
		initial := ""
		if text := s.value.String(); text != "" {
			initial = "`" + text + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | `%s` | %s | %s |\n", s.name, s.variable(), s.name, initial, s.help)
	}
	return b.String()
}
