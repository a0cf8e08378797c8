package main

import (
	"github.com/hashicorp/go-hclog"
)

// logger writes to stderr what is at least as severe as the configuration says, for people or as JSON lines.
func (p *program) logger(c *configuration) hclog.Logger {
	people := c.logFormat == "people" || c.logFormat == "auto" && terminal(p.stderr)
	colour := hclog.ColorOff
	if people && p.colour(p.stderr) {
		colour = hclog.ForceColor
	}
	return hclog.New(&hclog.LoggerOptions{
		Name:       "pawl",
		Level:      hclog.LevelFromString(c.logLevel),
		Output:     p.stderr,
		JSONFormat: !people,
		Color:      colour,
	})
}
