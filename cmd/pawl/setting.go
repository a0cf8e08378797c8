package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/pawl-lock/pawl/server"
)

// configuration is all that pawl server is told.
type configuration struct {
	server.Config
	logLevel  string
	logFormat string
}

// setting is one thing that pawl server can be told, in three ways: as --name, as PAWL_NAME and as "name:" in the file.
// Flags, variables, keys, the help and the table in docs/cli.md are all made from the one list of settings.
type setting struct {
	name  string
	value pflag.Value // writes into a configuration; holds the default until it is told something
	help  string
}

func (s setting) variable() string {
	return "PAWL_" + strings.ToUpper(strings.ReplaceAll(s.name, "-", "_"))
}

// settings lists them, each bound to its field of c and with its default in there. Where the default is "" the node
// chooses it (server.Config says how).
func settings(c *configuration) []setting {
	limit := func(name string, target *uint64, initial uint64, help string) setting {
		return setting{"limit-" + name, number(target, initial), help}
	}
	return []setting{
		{"name", text(&c.Name, ""), "name of this node, one of those in peers"},
		{"data", text(&c.DataDir, ""), "directory for this node's data, made when it is not there"},
		{"peers", peers(&c.Peers), "the nodes that form the cluster, the same list on each: name=host:port,…"},
		{"api", text(&c.APIListen, "127.0.0.1:7700"), "host:port where clients are served"},
		{"api-url", text(&c.APIURL, ""), "URL at which clients reach this node (default http:// and api)"},
		{"peer-listen", text(&c.PeerListen, ""), "host:port where the other nodes are served (default this node's address in peers)"},
		{"insecure", boolean(&c.Insecure), "listen beyond this machine although nothing is encrypted"},
		{"profile", choice(&c.Profile, "default", "fast", "slow"), "timing: fast for local disks and quiet machines, slow for disks that stall"},
		{"token-floor", number(&c.TokenFloor, 0), "keep the tokens of a new cluster above this; effective only when it is formed"},
		{"max-conns", number(&c.MaxConns, 4096), "connections of clients at once"},
		limit("sessions", &c.Limits.Sessions, 200_000, "live sessions, those of single acquires included"),
		limit("requests", &c.Limits.Requests, 10_000, "holds and waits of one session"),
		limit("waiters", &c.Limits.Waiters, 10_000, "requests that wait for one lock"),
		limit("holders", &c.Limits.Holders, 100_000, "holds of one shared lock"),
		{"log-level", choice(&c.logLevel, "info", "trace", "debug", "warn", "error"), "least severity that is logged"},
		{"log-format", choice(&c.logFormat, "auto", "people", "json"), "auto is for people on a terminal and JSON otherwise"},
	}
}

// value is the pflag.Value of every kind of setting.
type value[T any] struct {
	target *T
	kind   string
	parse  func(string) (T, error)
	format func(T) string
}

func (v *value[T]) Set(text string) error {
	parsed, err := v.parse(text)
	if err == nil {
		*v.target = parsed
	}
	return err
}

func (v *value[T]) String() string { return v.format(*v.target) }
func (v *value[T]) Type() string   { return v.kind }

func text(target *string, initial string) pflag.Value {
	*target = initial
	same := func(s string) string { return s }
	return &value[string]{target, "text", func(s string) (string, error) { return s, nil }, same}
}

// choice is one of several words, of which the first is the default.
func choice(target *string, words ...string) pflag.Value {
	*target = words[0]
	parse := func(s string) (string, error) {
		if !slices.Contains(words, s) {
			return "", fmt.Errorf("must be one of %s", strings.Join(words, ", "))
		}
		return s, nil
	}
	return &value[string]{target, strings.Join(words, "|"), parse, func(s string) string { return s }}
}

// number is a plain decimal number: what a fraction or a unit would mean is not guessed.
func number[T int | uint64](target *T, initial T) pflag.Value {
	*target = initial
	parse := func(s string) (T, error) {
		parsed, err := strconv.ParseUint(s, 10, 63)
		if err != nil {
			return 0, fmt.Errorf("must be a whole number from 0 in decimal digits")
		}
		return T(parsed), nil
	}
	return &value[T]{target, kindNumber, parse, func(n T) string { return strconv.FormatUint(uint64(n), 10) }}
}

// boolean is true or false, and on the command line true when it stands there alone.
func boolean(target *bool) pflag.Value {
	parse := func(s string) (bool, error) {
		if s != "true" && s != "false" {
			return false, fmt.Errorf("must be true or false")
		}
		return s == "true", nil
	}
	return &value[bool]{target, kindBoolean, parse, strconv.FormatBool}
}

const (
	kindBoolean = "bool" // the word by which pflag knows that no value need follow
	kindNumber  = "number"
	kindList    = "list"
)

func peers(target *[]server.Peer) pflag.Value {
	format := func(list []server.Peer) string {
		var items []string
		for _, peer := range list {
			items = append(items, peer.Name+"="+peer.Address)
		}
		return strings.Join(items, ",")
	}
	return &value[[]server.Peer]{target, kindList, server.ParsePeers, format}
}
