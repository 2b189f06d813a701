package main

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The sizes of a plot, in pixels.
const (
	panelWidth, panelHeight = 320, 180
	panelColumns            = 3
	marginLeft, marginTop   = 16, 44
	marginRight, marginLow  = 16, 30
	figureWidth             = panelColumns * panelWidth
)

// style makes a plot readable on light and dark grounds.
const style = `<style>
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #1c2430; }
.head { font-weight: 600; font-size: 13px; }
.ground { fill: #ffffff; }
.axis { stroke: #8a94a6; fill: none; }
.line { fill: none; stroke-width: 2; }
.a { stroke: #1f5fbf; } .b { stroke: #b3541e; } .ta { fill: #1f5fbf; } .tb { fill: #b3541e; }
.end { text-anchor: end; }
@media (prefers-color-scheme: dark) {
text { fill: #e8edf4; } .ground { fill: #0d1117; } .axis { stroke: #6e7a8c; }
.a { stroke: #6ea8ff; } .b { stroke: #ffa265; } .ta { fill: #6ea8ff; } .tb { fill: #ffa265; }
}
</style>
`

// xy is a point of a series.
type xy struct{ x, y float64 }

// series is a line of a panel. Each has a scale of its own, from 0 to its label.
type series struct {
	name   string
	unit   string
	points []xy
}

// top returns the upper end of the scale.
func (s series) top() float64 {
	top := 0.0
	for _, p := range s.points {
		top = max(top, p.y)
	}
	return top
}

// panel is a small plot with at most two series.
type panel struct {
	title  string
	xLabel string
	// logX makes the x axis logarithmic.
	logX   bool
	series []series
}

// figure returns an SVG file with panels in rows.
func figure(title string, panels []panel) []byte {
	rows := (len(panels) + panelColumns - 1) / panelColumns
	var b bytes.Buffer
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="%s">`+"\n",
		figureWidth, rows*panelHeight, title)
	b.WriteString(style)
	fmt.Fprintf(&b, `<rect class="ground" width="%d" height="%d"/>`+"\n", figureWidth, rows*panelHeight)
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d %d)">`+"\n", i%panelColumns*panelWidth, i/panelColumns*panelHeight)
		p.draw(&b)
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}

func (p panel) draw(b *bytes.Buffer) {
	const right, low = panelWidth - marginRight, panelHeight - marginLow
	fmt.Fprintf(b, `<text class="head" x="%d" y="16">%s</text>`+"\n", marginLeft, p.title)
	fmt.Fprintf(b, `<path class="axis" d="M%d %dV%dH%d"/>`+"\n", marginLeft, marginTop, low, right)
	least, most := p.span()
	fmt.Fprintf(b, `<text x="%d" y="%d">%s</text>`+"\n", marginLeft, panelHeight-12, compact(least))
	fmt.Fprintf(b, `<text class="end" x="%d" y="%d">%s %s</text>`+"\n", right, panelHeight-12, compact(most), p.xLabel)
	for i, s := range p.series {
		p.line(b, s, string(rune('a'+i)), i*panelWidth*2/5)
	}
}

// span returns the ends of the x axis.
func (p panel) span() (least, most float64) {
	least, most = math.Inf(1), math.Inf(-1)
	for _, s := range p.series {
		for _, point := range s.points {
			least, most = min(least, point.x), max(most, point.x)
		}
	}
	return least, most
}

func (p panel) line(b *bytes.Buffer, s series, class string, legend int) {
	const width, height = panelWidth - marginLeft - marginRight, panelHeight - marginTop - marginLow
	least, most := p.span()
	top := max(s.top(), math.SmallestNonzeroFloat64)
	fmt.Fprintf(b, `<text class="t%s" x="%d" y="34">%s: max %s %s</text>`+"\n",
		class, marginLeft+legend, s.name, compact(s.top()), s.unit)
	fmt.Fprintf(b, `<path class="line %s" d="`, class)
	for i, point := range s.points {
		x := marginLeft + width*p.part(point.x, least, most)
		y := marginTop + height*(1-point.y/top)
		fmt.Fprintf(b, "%s%.1f %.1f", command(i), x, y)
	}
	b.WriteString(`"/>` + "\n")
}

// command returns the command of a path: to move first, and then to draw.
func command(i int) string {
	if i == 0 {
		return "M"
	}
	return "L"
}

// part returns the place of x between the ends of the axis.
func (p panel) part(x, least, most float64) float64 {
	if most <= least {
		return 0
	}
	if p.logX {
		x, least, most = math.Log(x), math.Log(least), math.Log(most)
	}
	return (x - least) / (most - least)
}

// compact returns a number with three digits at most behind the point.
func compact(x float64) string {
	if math.Abs(x) >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strings.TrimSuffix(strconv.FormatFloat(x, 'f', 1, 64), ".0")
}

// curves returns the plot of the figures by the number of runtimes.
func curves(results []*result) []byte {
	of := func(scenario, name, unit string, figure func(*result) float64) series {
		s := series{name: name, unit: unit}
		for _, r := range results {
			if r.scenario == scenario && r.variant == results[0].variant {
				s.points = append(s.points, xy{float64(r.n), figure(r)})
			}
		}
		slices.SortFunc(s.points, func(a, b xy) int { return cmp.Compare(a.x, b.x) })
		return s
	}
	panels := []panel{
		{title: "Listener: memory each", series: []series{
			of("steady", "resident", "KiB", func(r *result) float64 { return float64(r.resident) / 1024 }),
		}},
		{title: "Listener: processor each, a minute", series: []series{
			of("steady", "processor", "ms", func(r *result) float64 { return r.processor.Seconds() * 1000 }),
		}},
		{title: "Commit to reconcile, steady", series: []series{
			of("steady", "p50", "ms", func(r *result) float64 { return r.look.p50.Seconds() * 1000 }),
			of("steady", "p99", "ms", func(r *result) float64 { return r.look.p99.Seconds() * 1000 }),
		}},
		{title: "Storm", series: []series{
			of("storm", "p50", "s", func(r *result) float64 { return r.look.p50.Seconds() }),
			of("storm", "p99", "s", func(r *result) float64 { return r.look.p99.Seconds() }),
		}},
		{title: "Restart: all connected, all fresh", series: []series{
			of("restart", "connected", "s", func(r *result) float64 { return r.known.Seconds() }),
			of("restart", "fresh", "s", func(r *result) float64 { return r.fresh.Seconds() }),
		}},
		{title: "New leader: all connected, all fresh", series: []series{
			of("leader", "connected", "s", func(r *result) float64 { return r.known.Seconds() }),
			of("leader", "fresh", "s", func(r *result) float64 { return r.fresh.Seconds() }),
		}},
	}
	for i := range panels {
		panels[i].xLabel, panels[i].logX = "runtimes", true
	}
	return figure("Figures by the number of runtimes", withPoints(panels))
}

// timelines returns the plot of each scenario of the largest fleet over time.
func timelines(results []*result) []byte {
	most := slices.MaxFunc(results, func(a, b *result) int { return a.n - b.n }).n
	var panels []panel
	for _, r := range results {
		if r.n == most && r.variant == results[0].variant {
			panels = append(panels, panel{
				title: r.scenario, xLabel: "s", series: []series{
					{name: "fresh", points: r.line(func(_, p point, _ float64) float64 { return float64(p.fresh) })},
					{name: "handshakes", unit: "/s", points: r.line(func(a, b point, seconds float64) float64 {
						return float64(b.handshakes-a.handshakes) / seconds
					})},
				},
			})
		}
	}
	return figure(fmt.Sprintf("%d runtimes over time", most), withPoints(panels))
}

// line returns a figure between each two points.
func (r *result) line(figure func(a, b point, seconds float64) float64) (points []xy) {
	for i := 1; i < len(r.points); i++ {
		a, b := r.points[i-1], r.points[i]
		points = append(points, xy{b.at.Seconds(), max(figure(a, b, (b.at-a.at).Seconds()), 0)})
	}
	return thin(points)
}

// mostPoints bounds the points of a line, so that files stay small.
const mostPoints = 200

// thin keeps the lowest and the highest of some points in a row, where there are too many.
func thin(points []xy) (kept []xy) {
	if len(points) <= mostPoints {
		return points
	}
	for some := range slices.Chunk(points, 2*len(points)/mostPoints+1) {
		low := slices.MinFunc(some, func(a, b xy) int { return cmp.Compare(a.y, b.y) })
		high := slices.MaxFunc(some, func(a, b xy) int { return cmp.Compare(a.y, b.y) })
		if low.x > high.x {
			low, high = high, low
		}
		kept = append(kept, low, high)
	}
	return kept
}

// withPoints leaves out panels of scenarios that were not played.
func withPoints(panels []panel) []panel {
	return slices.DeleteFunc(panels, func(p panel) bool {
		return slices.ContainsFunc(p.series, func(s series) bool { return len(s.points) == 0 })
	})
}
