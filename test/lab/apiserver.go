package lab

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/runtime-watcher/runtime-watcher/test/lab/apiserver"
)

// ScrapeAPIServer returns the metrics of an API server, in the exposition format.
func ScrapeAPIServer(t testing.TB, plane *apiserver.ControlPlane) []byte {
	t.Helper()
	client, err := rest.HTTPClientFor(plane.Config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	text, err := getWith(t.Context(), client, strings.TrimSuffix(plane.Config.Host, "/")+"/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Scrape returns the agent's metrics.
func (a *Agent) Scrape() []byte {
	a.t.Helper()
	text, err := a.get("/metrics")
	if err != nil {
		a.t.Fatal(err)
	}
	return text
}

// Histogram is one of Prometheus, over one or more series.
type Histogram struct {
	// Upper are the upper bounds of the buckets in seconds, ascending, and Counts how many
	// observations are not above each.
	Upper  []float64
	Counts []float64
	Count  float64
	Sum    float64
}

// ParseHistogram adds the histograms of a name in a text of the exposition format, over all series
// that have every given label.
func ParseHistogram(text []byte, name string, labels ...string) Histogram {
	h := Histogram{Count: Sum(text, name+"_count", labels...), Sum: Sum(text, name+"_sum", labels...)}
	buckets := map[float64]float64{}
	for line := range strings.Lines(string(text)) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !strings.HasPrefix(series, name+"_bucket{") || !containsAll(series, labels) {
			continue
		}
		_, after, _ := strings.Cut(series, `le="`)
		bound, _, _ := strings.Cut(after, `"`)
		upper, err := strconv.ParseFloat(bound, 64) // "+Inf", too.
		count, countErr := strconv.ParseFloat(value, 64)
		if err := cmp.Or(err, countErr); err == nil {
			buckets[upper] += count
		}
	}
	for upper := range buckets {
		h.Upper = append(h.Upper, upper)
	}
	slices.Sort(h.Upper)
	for _, upper := range h.Upper {
		h.Counts = append(h.Counts, buckets[upper])
	}
	return h
}

// Quantile returns the upper bound of the bucket that has the quantile, so the true value is not
// above it. It is 0 without observations.
func (h Histogram) Quantile(q float64) time.Duration {
	if h.Count == 0 {
		return 0
	}
	for i, upper := range h.Upper {
		if h.Counts[i] >= q*h.Count {
			return seconds(upper)
		}
	}
	return seconds(math.Inf(1))
}

// Mean returns the mean, 0 without observations.
func (h Histogram) Mean() time.Duration {
	if h.Count == 0 {
		return 0
	}
	return seconds(h.Sum / h.Count)
}

func seconds(s float64) time.Duration {
	if math.IsInf(s, 1) {
		return math.MaxInt64
	}
	return time.Duration(s * float64(time.Second))
}
