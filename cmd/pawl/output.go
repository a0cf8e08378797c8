package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
)

// duration says milliseconds as people do: 850ms, 12.3s, 4m05s, 3h12m, 2d4h.
func duration(milliseconds int64) string {
	d := time.Duration(milliseconds) * time.Millisecond
	switch {
	case d < time.Second:
		return fmt.Sprintf("%dms", milliseconds)
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", (d - d%(100*time.Millisecond)).Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
}

// table writes rows in aligned columns under a head line.
type table struct {
	columns *tabwriter.Writer
}

func newTable(w io.Writer, head ...string) *table {
	t := &table{tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
	t.line(head)
	return t
}

func (t *table) row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = shown(fmt.Sprint(cell))
	}
	t.line(texts)
}

func (t *table) line(cells []string) {
	// tabwriter keeps the first write error for flush.
	fmt.Fprintln(t.columns, strings.Join(cells, "\t"))
}

func (t *table) flush() error { return t.columns.Flush() }

// shown makes a text harmless in a table: owners and names come from others, and must not move the cursor or columns.
func shown(text string) string {
	if text == "" {
		return "-"
	}
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '�'
		}
		return r
	}, text)
}

// plural says a number of things.
func plural(n int64, one string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %ss", n, one)
}
