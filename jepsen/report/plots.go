package report

import (
	"bytes"
	"encoding/base64"
	"html/template"
	"image/color"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"

	"github.com/pawl-lock/pawl/jepsen/history"
)

// The colours of outcomes, on the page and in the plots. Unknown stands out more than a refusal, which is everyday.
var (
	colourOK    = color.RGBA{0x2b, 0x6c, 0xb0, 0xff}
	colourFail  = color.RGBA{0x9a, 0xa5, 0xb1, 0xff}
	colourInfo  = color.RGBA{0xe6, 0x8a, 0x00, 0xff}
	colourFault = color.NRGBA{0xd6, 0x45, 0x45, 0x24}
)

var outcomes = []struct {
	kind   history.Type
	colour color.Color
}{{history.Fail, colourFail}, {history.OK, colourOK}, {history.Info, colourInfo}}

const (
	plotWidth, plotHeight = 1160, 260 // pixels of the page
	mostPoints            = 6000      // of a kind in the latency plot
	buckets               = 240       // of time in the rate plot
)

// latencies plots how long operations took, and says what was left out.
func (r Run) latencies(operations []history.Operation) (template.URL, error) {
	p := r.plot("latency")
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = decades{}
	low, high := 1e-3, 1.0
	for _, o := range outcomes {
		var points plotter.XYs
		for _, operation := range operations {
			if operation.Complete.Type == o.kind {
				took := max((operation.End() - operation.Invoke.Time).Seconds(), 1e-4)
				low, high = min(low, took), max(high, took)
				points = append(points, plotter.XY{X: operation.Invoke.Time.Seconds(), Y: took})
			}
		}
		if points = thin(points); len(points) == 0 {
			continue
		}
		scatter, err := plotter.NewScatter(points)
		if err != nil {
			return "", err
		}
		scatter.GlyphStyle = draw.GlyphStyle{Color: o.colour, Radius: vg.Points(1.3), Shape: draw.CircleGlyph{}}
		p.Add(scatter)
	}
	p.Y.Min, p.Y.Max = low/1.5, high*1.5
	return render(p)
}

// thin leaves out points evenly, but never the slowest ones.
func thin(points plotter.XYs) plotter.XYs {
	if len(points) <= mostPoints {
		return points
	}
	slowest := slices.Clone(points)
	slices.SortFunc(slowest, func(a, b plotter.XY) int {
		if a.Y > b.Y {
			return -1
		}
		return 1
	})
	thinned := slices.Clone(slowest[:mostPoints/10])
	step := float64(len(points)) / (mostPoints * 0.9)
	for i := 0.0; int(i) < len(points); i += step {
		thinned = append(thinned, points[int(i)])
	}
	return thinned
}

// rates plots how many operations were completed in a second.
func (r Run) rates(operations []history.Operation) (template.URL, error) {
	p := r.plot("operations per second")
	width := max(r.length()/buckets, time.Second)
	for _, o := range outcomes {
		counts := make([]float64, r.length()/width+1)
		total := 0
		for _, operation := range operations {
			if operation.Complete.Type == o.kind {
				counts[operation.End()/width]++
				total++
			}
		}
		if total == 0 {
			continue
		}
		points := make(plotter.XYs, len(counts))
		for i, count := range counts {
			points[i] = plotter.XY{X: (time.Duration(i)*width + width/2).Seconds(), Y: count / width.Seconds()}
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return "", err
		}
		line.Color, line.Width = o.colour, vg.Points(1.5)
		p.Add(line)
		p.Y.Max = max(p.Y.Max, slices.MaxFunc(points, func(a, b plotter.XY) int { return int(math.Copysign(1, a.Y-b.Y)) }).Y)
	}
	p.Y.Min = 0
	return render(p)
}

// plot is one with the run's time as its x axis and the faults shaded.
func (r Run) plot(what string) *plot.Plot {
	p := plot.New()
	p.X.Label.Text, p.Y.Label.Text = "since the run began", what
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label} {
		style.Font.Variant, style.Font.Size = "Sans", vg.Points(8)
	}
	p.X.Tick.Marker = clocks(r.length())
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{0xe8}, color.Gray{0xe8}
	p.Add(shades(r.faults()), grid)
	p.X.Min, p.X.Max = 0, r.length().Seconds()
	return p
}

// shades colours the times of faults over the whole height of a plot.
type shades []fault

func (s shades) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	for _, span := range joined(s) {
		from, to := x(span.from.Seconds()), x(span.to.Seconds())
		c.FillPolygon(colourFault, []vg.Point{{X: from, Y: c.Min.Y}, {X: to, Y: c.Min.Y}, {X: to, Y: c.Max.Y}, {X: from, Y: c.Max.Y}})
	}
}

// joined makes one of faults that overlap, so that all are shaded alike.
func joined(faults []fault) []fault {
	var spans []fault
	for _, f := range slices.SortedFunc(slices.Values(faults), func(a, b fault) int { return int(a.from - b.from) }) {
		if n := len(spans); n > 0 && f.from <= spans[n-1].to {
			spans[n-1].to = max(spans[n-1].to, f.to)
		} else {
			spans = append(spans, f)
		}
	}
	return spans
}

// decades marks powers of ten, in words that people read.
type decades struct{}

func (decades) Ticks(low, high float64) []plot.Tick {
	labels := map[int]string{-4: "100 µs", -3: "1 ms", -2: "10 ms", -1: "100 ms", 0: "1 s", 1: "10 s", 2: "100 s"}
	var ticks []plot.Tick
	for e := int(math.Floor(math.Log10(low))); e <= int(math.Ceil(math.Log10(high))) && e < 9; e++ {
		if at := math.Pow(10, float64(e)); at >= low && at <= high {
			ticks = append(ticks, plot.Tick{Value: at, Label: labels[e]})
		}
	}
	return ticks
}

// clocks marks the times that the timeline marks.
type clocks time.Duration

func (c clocks) Ticks(_, _ float64) []plot.Tick {
	var ticks []plot.Tick
	step := step(time.Duration(c))
	for t := time.Duration(0); t <= time.Duration(c); t += step {
		ticks = append(ticks, plot.Tick{Value: t.Seconds(), Label: mark(t, step)})
	}
	return ticks
}

// render draws at twice the page's resolution.
func render(p *plot.Plot) (template.URL, error) {
	const dpi = 192 // two pixels for each of the page
	size := func(pixels int) vg.Length { return vg.Length(pixels) * vg.Inch / (dpi / 2) }
	canvas := vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(size(plotWidth), size(plotHeight)), vgimg.UseDPI(dpi))}
	p.Draw(draw.New(canvas))
	var png bytes.Buffer
	if _, err := canvas.WriteTo(&png); err != nil {
		return "", err
	}
	return template.URL("data:image/png;base64," + base64.StdEncoding.EncodeToString(png.Bytes())), nil
}
