package main

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// The size of the plot, and the delays at its left and right end.
const (
	width, height, margin = 640.0, 280.0, 40.0
	least, most           = 0.05, 600.0
)

// plot draws, for each way, the part of the edits that were corrected after a delay.
func plot(results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %g %g" role="img" `+
		`aria-label="Part of the edits that are corrected, by delay" font-family="sans-serif" font-size="12">`+"\n",
		width, height)
	fmt.Fprintf(&b, `<rect width="%g" height="%g" fill="white"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<text x="0" y="%g">100 %%</text><text x="0" y="%g">0 %%</text>`+"\n", margin, height-margin)
	for _, s := range []float64{0.1, 1, 10, 60, 300} {
		at := x(time.Duration(s * float64(time.Second)))
		fmt.Fprintf(&b, `<path d="M%.1f %g V%g" stroke="#ddd"/><text x="%.1f" y="%g" text-anchor="middle">%g s</text>`+"\n",
			at, margin, height-margin, at, height-margin/2, s)
	}
	for i, r := range results {
		color := []string{"#0a7d33", "#b35900", "#1f5fbf"}[i%3]
		fmt.Fprintf(&b, `<path d="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", steps(r.delays), color)
		fmt.Fprintf(&b, `<text x="%g" y="20" fill="%s">%s</text>`+"\n", margin+200*float64(i), color, r.name)
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// x is logarithmic.
func x(delay time.Duration) float64 {
	return margin + (width-2*margin)*math.Log(delay.Seconds()/least)/math.Log(most/least)
}

func steps(delays []time.Duration) string {
	var path strings.Builder
	fmt.Fprintf(&path, "M%g %g", margin, height-margin)
	for i, delay := range delays {
		part := float64(i+1) / float64(len(delays))
		fmt.Fprintf(&path, " H%.1f V%.1f", x(delay), height-margin-part*(height-2*margin))
	}
	fmt.Fprintf(&path, " H%g", width-margin)
	return path.String()
}
