package process

import (
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Cut implements cluster.Cluster: packets are dropped where they arrive.
func (c *Cluster) Cut(from, to int) error {
	c.touched[to] = true
	return c.hosts[to].run("iptables", "-w", "-I", "INPUT", "-s", c.hosts[from].address, "-j", "DROP")
}

// Delay implements cluster.Cluster: packets are held where they arrive, by delay ± jitter.
func (c *Cluster) Delay(from, to int, delay, jitter time.Duration) error {
	return c.trouble(from, to, trouble{delay: delay, jitter: min(jitter, delay)})
}

// Lose implements cluster.Cluster: packets are dropped where they arrive.
func (c *Cluster) Lose(from, to int, share float64, seed uint64) error {
	return c.trouble(from, to, trouble{loss: share, seed: seed})
}

func (c *Cluster) trouble(from, to int, what trouble) error {
	queue := uint16(from + 1)
	var h *holder
	err := c.hosts[to].inside(func() (err error) {
		h, err = hold(queue, what)
		return err
	})
	if err != nil {
		return fmt.Errorf("delaying or losing %s to %s: %w", c.hosts[from].name, c.hosts[to].name, err)
	}
	c.holders = append(c.holders, h)
	c.touched[to] = true
	return c.hosts[to].run("iptables", "-w", "-A", "INPUT", "-s", c.hosts[from].address, "-j", "NFQUEUE",
		"--queue-num", strconv.Itoa(int(queue)), "--queue-bypass") // without a holder they go through
}

// Heal implements cluster.Cluster.
func (c *Cluster) Heal() error {
	var errs []error
	for to := range c.touched {
		if err := c.hosts[to].run("iptables", "-w", "-F", "INPUT"); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(c.touched, to)
	}
	for _, h := range c.holders {
		h.close()
	}
	c.holders = nil
	return errors.Join(errs...)
}
