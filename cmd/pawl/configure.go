package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// addFlags makes a flag of each setting.
func addFlags(flags *pflag.FlagSet, list []setting) {
	for _, s := range list {
		f := flags.VarPF(s.value, s.name, "", s.help+" ("+s.variable()+")")
		if s.value.Type() == kindBoolean {
			f.NoOptDefVal = "true"
		}
	}
}

// configure fills the settings, of which flags has those of the command line already: a flag counts more than a
// variable, a variable more than the file (its path and content; no file has no content), the file more than the
// default. It gives where each value came from. A variable that is set to nothing counts as not set, because compose
// files and unit files cannot leave one out.
func configure(list []setting, flags *pflag.FlagSet, getenv func(string) string, path string, file []byte) (origins map[string]string, err error) {
	given := map[string]string{}
	for _, s := range list {
		if f := flags.Lookup(s.name); f != nil && f.Changed {
			given[s.name] = s.value.String()
		}
	}
	keys, err := readKeys(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	origins = map[string]string{}
	var found []error
	tell := func(s setting, text, origin string) {
		if err := s.value.Set(text); err != nil {
			found = append(found, fmt.Errorf("%s: %q: %w", origin, text, err))
		}
		origins[s.name] = origin
	}
	for _, s := range list {
		origins[s.name] = "default"
		if key, ok := keys[s.name]; ok {
			origin := fmt.Sprintf("%s:%d", path, key.line)
			if key.list && s.value.Type() != kindList {
				found = append(found, fmt.Errorf("%s: %s is one value, not a list", origin, s.name))
			} else {
				tell(s, key.text, origin)
			}
			delete(keys, s.name)
		}
		if text := getenv(s.variable()); text != "" {
			tell(s, text, s.variable())
		}
		if text, ok := given[s.name]; ok {
			tell(s, text, "--"+s.name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(keys)) {
		found = append(found, fmt.Errorf("%s:%d: there is no setting %q", path, keys[name].line, name))
	}
	return origins, errors.Join(found...)
}

// key is one setting as it stands in the file.
type key struct {
	text string
	list bool
	line int
}

// readKeys reads a YAML file that is one flat mapping of settings to values; a list is joined by commas.
func readKeys(file []byte) (map[string]key, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	var document yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, cmp.Or(err, errors.New("there is more than one document"))
	}
	if len(document.Content) == 0 {
		return nil, nil
	}
	mapping := document.Content[0]
	if mapping.Kind == yaml.ScalarNode && mapping.Tag == "!!null" {
		return nil, nil
	}
	if mapping.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: is not a list of lines like name: value", mapping.Line)
	}
	keys := map[string]key{}
	for i := 0; i < len(mapping.Content); i += 2 {
		name, content := mapping.Content[i], mapping.Content[i+1]
		if first, twice := keys[name.Value]; twice {
			return nil, fmt.Errorf("line %d: %s stands in line %d already", name.Line, name.Value, first.line)
		}
		items, list := []*yaml.Node{content}, content.Kind == yaml.SequenceNode
		if list {
			items = content.Content
		}
		var texts []string
		for _, item := range items {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, fmt.Errorf("line %d: %s has no plain value", name.Line, name.Value)
			}
			texts = append(texts, item.Value)
		}
		keys[name.Value] = key{strings.Join(texts, ","), list, name.Line}
	}
	return keys, nil
}

// printConfiguration writes the settings as a file that configure reads, each with where it came from.
func printConfiguration(w io.Writer, list []setting, origins map[string]string) error {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, s := range list {
		text := s.value.String()
		if kind := s.value.Type(); kind != kindBoolean && kind != kindNumber {
			// Quoted where YAML would read something else than a text.
			quoted, err := yaml.Marshal(text)
			if err != nil {
				return fmt.Errorf("printing the configuration: %w", err)
			}
			text = string(bytes.TrimSpace(quoted))
		}
		fmt.Fprintf(columns, "%s: %s\t# %s\n", s.name, text, origins[s.name])
	}
	return columns.Flush()
}
