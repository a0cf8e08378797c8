package main

import (
	"bytes"
	"testing"
	"time"
)

func TestDuration(t *testing.T) {
	for _, test := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0ms"},
		{999 * time.Millisecond, "999ms"},
		{time.Second, "1.0s"},
		{59*time.Second + 999*time.Millisecond, "59.9s"},
		{time.Minute, "1m00s"},
		{61*time.Minute + 5*time.Second, "1h01m"},
		{50 * time.Hour, "2d2h"},
	} {
		if got := duration(test.d.Milliseconds()); got != test.want {
			t.Errorf("%v: got %s, want %s", test.d, got, test.want)
		}
	}
}

// Owners and names are written by others: in a terminal they must not do anything.
func TestTableShowsNothingThatActs(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "NAME", "OWNER")
	table.row("a\tb\n", "\x1b[2Jx")
	table.row("", "grün")
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	if want := "NAME  OWNER\na�b�  �[2Jx\n-     grün\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}
