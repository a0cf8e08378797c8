package report

import (
	"fmt"
	"html"
	"html/template"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pawl-lock/pawl/jepsen/check"
	"github.com/pawl-lock/pawl/jepsen/history"
)

const (
	chartWidth = plotWidth
	chartLeft  = 120 // for the names of the lanes
	chartRight = 24  // for the last time
	chartTop   = 34  // for the names of the faults
	chartFoot  = 20  // for the time axis
	laneHeight = 20
	mostLanes  = 24
	// mostBars are drawn one by one, with a word about each. More become columns of colour, this wide in pixels.
	mostBars    = 2500
	columnWidth = 2
)

// bar is something that goes on in a lane for some time.
type bar struct {
	from, to time.Duration
	colour   string
	label    string // inside, when it fits
	tip      string
	bold     bool // to be looked at
	open     bool // it has no end
}

type lane struct {
	name string
	bars []bar
	lock bool
}

// chart is a drawing of lanes below each other from one time to another.
type chart struct {
	from, to time.Duration
	lanes    []lane
	faults   []fault
	left     []string // what is not drawn, to be said
}

// apart puts bars of one lane that overlap into lanes of their own below it.
func apart(lanes []lane) []lane {
	var all []lane
	for _, l := range lanes {
		first := len(all)
		all = append(all, lane{name: l.name})
		for _, b := range l.bars {
			place := first
			for place < len(all) && len(all[place].bars) > 0 && all[place].bars[len(all[place].bars)-1].to > b.from {
				place++
			}
			if place == len(all) {
				all = append(all, lane{})
			}
			all[place].bars = append(all[place].bars, b)
		}
	}
	return all
}

func (c *chart) x(t time.Duration) float64 {
	t = min(max(t, c.from), c.to)
	return chartLeft + float64(t-c.from)/float64(c.to-c.from)*(chartWidth-chartLeft-chartRight)
}

// draw gives the SVG. Its size is bounded.
func (c *chart) draw() template.HTML {
	var b strings.Builder
	bars := 0
	for _, l := range c.lanes {
		bars += len(l.bars)
	}
	if bars <= mostBars {
		c.lanes = apart(c.lanes)
	}
	if len(c.lanes) > mostLanes {
		c.left = append(c.left, fmt.Sprintf("%d of %d lanes are not drawn", len(c.lanes)-mostLanes, len(c.lanes)))
		c.lanes = c.lanes[:mostLanes]
	}
	height := chartTop + len(c.lanes)*laneHeight + chartFoot
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" width="%d" height="%d" role="img">`, chartWidth, height, chartWidth, height)
	c.drawFaults(&b, height)
	c.drawAxis(&b, height)
	for i, l := range c.lanes {
		y := chartTop + i*laneHeight
		name := l.name
		if len([]rune(name)) > 17 {
			name = string([]rune(name)[:16]) + "…"
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="end"><title>%s</title>%s</text>`, chartLeft-8, y+14, html.EscapeString(l.name), html.EscapeString(name))
		fmt.Fprintf(&b, `<path d="M%d %dH%d" class="lane"/>`, chartLeft, y+laneHeight, chartWidth-chartRight)
		if bars > mostBars {
			if l.lock {
				for j := range l.bars {
					l.bars[j].colour = barHeld
				}
			}
			c.drawColumns(&b, l, y+3, laneHeight-5)
		} else {
			for _, bar := range l.bars {
				c.drawBar(&b, bar, y)
			}
		}
	}
	if bars > mostBars {
		c.left = append(c.left, fmt.Sprintf("%d bars are more than can be told apart: a lock's colour says only that it was held; a client's that there was an unknown outcome, or else what there was most of", bars))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func (c *chart) drawFaults(b *strings.Builder, height int) {
	const most = 300
	faults := slices.DeleteFunc(slices.Clone(c.faults), func(f fault) bool { return f.to < c.from || f.from > c.to })
	if len(faults) > most {
		c.left = append(c.left, fmt.Sprintf("%d faults are shaded without their names", len(faults)))
		l := lane{}
		for _, f := range faults {
			l.bars = append(l.bars, bar{from: f.from, to: f.to, colour: colourOfFaults})
		}
		c.drawColumns(b, l, chartTop, height-chartTop-chartFoot)
		return
	}
	var rows [2]float64 // how far the names in each row reach
	for _, f := range faults {
		from, to := c.x(f.from), c.x(f.to)
		fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" class="fault"><title>%s, %s – %s</title></rect>`,
			from, chartTop-2, max(to-from, 1), height-chartTop-chartFoot+2, html.EscapeString(f.note), clock(f.from), clock(f.to))
		for row := range rows {
			if rows[row] < from {
				fmt.Fprintf(b, `<text x="%.1f" y="%d" class="faultname">%s</text>`, from, 11+14*row, html.EscapeString(f.note))
				rows[row] = from + 6.2*float64(len(f.note)) + 8
				break
			}
		}
	}
}

// step is a round time of which a span has at most ten.
func step(span time.Duration) time.Duration {
	for unit := time.Microsecond; unit < time.Second; unit *= 10 {
		for _, n := range []time.Duration{1, 2, 5} {
			if span <= 10*n*unit {
				return n * unit
			}
		}
	}
	for _, seconds := range []time.Duration{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200} {
		if span <= 10*seconds*time.Second {
			return seconds * time.Second
		}
	}
	return span / 10
}

func (c *chart) drawAxis(b *strings.Builder, height int) {
	step := step(c.to - c.from)
	for t := (c.from + step - 1) / step * step; t <= c.to; t += step {
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" class="grid"/><text x="%.1f" y="%d" text-anchor="middle" class="time">%s</text>`,
			c.x(t), chartTop, height-chartFoot, c.x(t), height-5, mark(t, step))
	}
}

func (c *chart) drawBar(b *strings.Builder, bar bar, y int) {
	if bar.to < c.from || bar.from > c.to {
		return
	}
	from, to := c.x(bar.from), c.x(bar.to)
	class := "bar"
	if bar.bold {
		class += " bold"
	}
	if bar.open {
		class += " open"
	}
	fmt.Fprintf(b, `<rect x="%.1f" y="%d" width="%.1f" height="%d" rx="2" fill="%s" class="%s"><title>%s</title></rect>`,
		from, y+3, max(to-from, 1.5), laneHeight-5, bar.colour, class, html.EscapeString(bar.tip))
	if float64(len([]rune(bar.label)))*5.9+6 < to-from {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" class="inside">%s</text>`, from+4, y+14, html.EscapeString(bar.label))
	}
}

// drawColumns draws a lane with so many bars that only their colours can be seen: unknown outcomes wherever there is one,
// else what there is most of.
func (c *chart) drawColumns(b *strings.Builder, l lane, y, height int) {
	columns := make([]map[string]int, (chartWidth-chartLeft-chartRight)/columnWidth+1)
	for _, bar := range l.bars {
		for i := c.column(bar.from); i <= c.column(bar.to); i++ {
			if columns[i] == nil {
				columns[i] = map[string]int{}
			}
			columns[i][bar.colour]++
		}
	}
	paths := map[string]*strings.Builder{}
	for i := 0; i < len(columns); {
		colour, from := most(columns[i]), i
		for i < len(columns) && most(columns[i]) == colour {
			i++
		}
		if colour == "" {
			continue
		}
		if paths[colour] == nil {
			paths[colour] = &strings.Builder{}
		}
		width := (i - from) * columnWidth
		fmt.Fprintf(paths[colour], "M%d %dh%dv%dh-%dz", chartLeft+from*columnWidth, y, width, height, width)
	}
	for _, colour := range slices.Sorted(maps.Keys(paths)) {
		fmt.Fprintf(b, `<path fill="%s" d="%s"/>`, colour, paths[colour])
	}
}

// most is the colour to give to a column, "" for none.
func most(counts map[string]int) string {
	if counts[barInfo] > 0 {
		return barInfo
	}
	colour := ""
	for _, c := range slices.Sorted(maps.Keys(counts)) {
		if colour == "" || counts[c] > counts[colour] {
			colour = c
		}
	}
	return colour
}

func (c *chart) column(t time.Duration) int { return int(c.x(t)-chartLeft) / columnWidth }

// What bars of operations look like.
const (
	barOK   = "#90c2f0"
	barFail = "#ccd3da"
	barInfo = "#f5b041"
	barHeld = "#7b93ad" // a lock, by whomever

	colourOfFaults = "#f8e4e4"
)

// holders are the colours of clients as holders: neighbours in the list are easily told apart.
var holders = []string{"#2b6cb0", "#dd6b20", "#2f855a", "#b83280", "#6b46c1", "#b7791f", "#2c7a7b", "#c53030", "#4a5568", "#9f7aea"}

func holder(client int) string { return holders[max(client, 0)%len(holders)] }

// timeline draws locks, with who believed to hold them, and clients, with what they did. When there is something to show,
// its bars are bold, and lanes that have nothing to do with it are left out.
func (r Run) timeline(operations []history.Operation, beliefs []check.Belief, from, to time.Duration, show *shown) *chart {
	c := &chart{from: from, to: max(to, from+1), faults: r.faults()}
	locks, clients := map[string]*lane{}, map[int]*lane{}
	bold := map[*lane]bool{}
	for _, h := range beliefs {
		if h.Until < from || h.From > to || h.Until == h.From {
			continue
		}
		l := locks[h.Lock]
		if l == nil {
			l = &lane{name: h.Lock, lock: true}
			locks[h.Lock] = l
		}
		client := r.client(h.Process)
		l.bars = append(l.bars, bar{
			from: h.From, to: h.Until, colour: holder(client), bold: show.holds(h),
			label: fmt.Sprintf("%d: %d", client, h.Token),
			tip:   fmt.Sprintf("client %d holds %s (%s) with token %d from %s to %s", client, h.Lock, h.Mode, h.Token, clock(h.From), clock(h.Until)),
		})
		bold[l] = bold[l] || show.locks(h.Lock)
	}
	for _, o := range operations {
		if o.End() < from || o.Invoke.Time > to {
			continue
		}
		client := r.client(o.Invoke.Process)
		l := clients[client]
		if l == nil {
			l = &lane{name: fmt.Sprint("client ", client)}
			clients[client] = l
		}
		b := bar{from: o.Invoke.Time, to: min(o.End(), to), tip: describe(o), label: label(o), bold: show.operation(o)}
		switch o.Outcome() {
		case history.OK:
			b.colour = barOK
		case history.Fail:
			b.colour = barFail
		default:
			b.colour, b.open = barInfo, true
		}
		l.bars = append(l.bars, b)
		bold[l] = bold[l] || b.bold
	}
	for _, name := range slices.Sorted(maps.Keys(locks)) {
		if l := locks[name]; show == nil || bold[l] {
			c.lanes = append(c.lanes, *l)
		}
	}
	if most := mostLanes / 2; len(c.lanes) > most {
		c.left = append(c.left, fmt.Sprintf("%d of %d locks are not drawn", len(c.lanes)-most, len(c.lanes)))
		c.lanes = c.lanes[:most]
	}
	for _, client := range slices.Sorted(maps.Keys(clients)) {
		if l := clients[client]; show == nil || bold[l] {
			c.lanes = append(c.lanes, *l)
		}
	}
	return c
}

// shown is what a verdict shows, nil when there is none.
type shown struct {
	ops  map[int]bool
	lock map[string]bool
	hold map[check.Belief]bool
}

func (s *shown) holds(b check.Belief) bool { return s != nil && s.hold[b] }
func (s *shown) locks(name string) bool    { return s != nil && s.lock[name] }
func (s *shown) operation(o history.Operation) bool {
	return s != nil && (s.ops[o.Invoke.Index] || o.Complete.Type != "" && s.ops[o.Complete.Index])
}

// describe says all about an operation.
func describe(o history.Operation) string {
	end := "never completed"
	if o.Complete.Type != "" {
		end = fmt.Sprintf("%s, %s after %s", o.Complete.Type, detail(o.Complete), (o.End() - o.Invoke.Time).Round(time.Microsecond))
	}
	return fmt.Sprintf("process %d: %s %s at %s: %s", o.Invoke.Process, o.Invoke.F, detail(o.Invoke), clock(o.Invoke.Time), end)
}

// label says the little that fits into a bar.
func label(o history.Operation) string {
	switch {
	case o.Complete.Type == history.Fail:
		return o.Invoke.F + " ✗"
	case o.Complete.Type != history.OK:
		return o.Invoke.F + " ?"
	case o.Invoke.F == history.Write, o.Invoke.F == history.Add:
		return fmt.Sprintf("%s %d", o.Invoke.F, o.Invoke.Value)
	case o.Complete.Value != 0:
		return fmt.Sprintf("%s → %d", o.Invoke.F, o.Complete.Value)
	case o.Invoke.F != history.Release && o.Complete.Token != 0:
		return fmt.Sprintf("%s → %d", o.Invoke.F, o.Complete.Token)
	}
	return o.Invoke.F
}

// clock is a time since the run began: to the millisecond, or as short as it can be said.
func clock(t time.Duration) string {
	switch {
	case t < time.Second:
		return fmt.Sprintf("%.4g ms", t.Seconds()*1000)
	case t%time.Second != 0:
		return fmt.Sprintf("%.3f s", t.Seconds())
	}
	return mark(t, time.Second)
}

// mark is a time on an axis with marks that far apart.
func mark(t, step time.Duration) string {
	seconds := t / time.Second
	switch {
	case step < time.Second:
		return fmt.Sprintf("%.3f s", t.Seconds())
	case t >= time.Hour:
		return fmt.Sprintf("%d:%02d:%02d", seconds/3600, seconds/60%60, seconds%60)
	case t >= time.Minute:
		return fmt.Sprintf("%d:%02d", seconds/60, seconds%60)
	}
	return fmt.Sprintf("%d s", seconds)
}
