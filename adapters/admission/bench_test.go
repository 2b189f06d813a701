package admission_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/adapters/admission"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/hook"
)

// discard is an acceptor without costs.
func discard(core.Manager, core.WatchEvent) core.Outcome { return core.Accepted }

// sizedWidget returns an object of about size bytes with a usual shape: lists of small objects with
// short strings, some of them escaped, and numbers. A tenth is managedFields. The value of replicas
// is last in the spec.
func sizedWidget(size, replicas int) string {
	var items, managed strings.Builder
	for i := 0; items.Len() < size-size/10; i++ {
		fmt.Fprintf(&items, `{"name":"container-%d","image":"example.org/team/image:1.%d","args":["--flag=\"value\"","--level=info"],`+
			`"ports":[{"containerPort":%d,"protocol":"TCP"}],"resources":{"limits":{"cpu":"100m","memory":"128Mi"}},"tty":false},`, i, i, i)
	}

	for i := 0; managed.Len() < size/10; i++ {
		fmt.Fprintf(&managed, `"k:{\"name\":\"container-%d\"}":{".":{},"f:image":{},"f:name":{}},`, i)
	}

	return widget(`"labels":{"app":"widget","operator.kyma-project.io/watched-by":"kyma"},`+
		`"annotations":{"operator.kyma-project.io/owned-by":"kcp-system/kyma"},`+
		`"managedFields":[{"manager":"kubectl","operation":"Update","fieldsV1":{`+managed.String()+`"f:spec":{}}}]`,
		`"spec":{"containers":[`+items.String()+fmt.Sprintf(`{}],"replicas":%d}`, replicas))
}

func benchReview(b *testing.B, size int, changed bool) []byte {
	b.Helper()

	after := 1
	if changed {
		after = 2
	}
	return update(b, sizedWidget(size, 1), sizedWidget(size, after))
}

var sizes = []struct {
	name string
	size int
}{{"2kB", 1500}, {"100kB", 100_000}, {"1MiB", 1 << 20}}

// BenchmarkReview measures the review of an update in the handler, without TLS and HTTP. The bytes
// are those of the review, which has the object twice.
func BenchmarkReview(b *testing.B) {
	for _, size := range sizes {
		for _, changed := range []bool{false, true} {
			name := size.name + "/unchanged"
			if changed {
				name = size.name + "/changed"
			}

			b.Run(name, func(b *testing.B) {
				h := newHandler(b, core.AcceptorFunc(discard), admission.Options{Now: time.Now})
				benchmarkHandler(b, h, benchReview(b, size.size, changed))
			})
		}
	}
}

func benchmarkHandler(b *testing.B, h http.Handler, review []byte) {
	b.Helper()

	body := bytes.NewReader(review)
	r := httptest.NewRequest(http.MethodPost, "/validate/kyma", body)
	r.Header.Set("Content-Type", "application/json")
	w := &nullWriter{header: http.Header{}}
	b.SetBytes(int64(len(review)))
	b.ReportAllocs()

	for b.Loop() {
		body.Reset(review)
		h.ServeHTTP(w, r)
	}

	if w.code != http.StatusOK {
		b.Fatalf("answered %d", w.code)
	}
}

type nullWriter struct {
	header http.Header
	code   int
}

func (w *nullWriter) Header() http.Header            { return w.header }
func (w *nullWriter) Write(text []byte) (int, error) { return len(text), nil }
func (w *nullWriter) WriteHeader(code int)           { w.code = code }

// bareHandler has the least costs that a webhook can have: it finds the uid and echoes it.
func bareHandler(w http.ResponseWriter, r *http.Request) {
	var review struct {
		Request struct {
			UID types.UID `json:"uid"`
		} `json:"request"`
	}
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`,
		review.Request.UID)
}

// floorHandler reads the body and finds the uid without parsing JSON, so it costs TLS and HTTP
// alone.
func floorHandler(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}

	_, behind, _ := bytes.Cut(body, []byte(`"uid":"`))
	uid, _, _ := bytes.Cut(behind, []byte(`"`))
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintf(w, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true}}`, uid)
}

// BenchmarkReviewsTLS compares reviews per second with a bare handler: 16 concurrent writers,
// client and server on one machine. The goal is at least 1.0 of bare, and 0.9 of the floor.
func BenchmarkReviewsTLS(b *testing.B) {
	ours := newHandler(b, core.AcceptorFunc(discard), admission.Options{Now: time.Now})
	const writers = 16

	for _, protocol := range []string{"HTTP1.1", "HTTP2"} {
		for _, size := range sizes[:2] {
			review := benchReview(b, size.size, true)
			b.Run(protocol+"/"+size.name+"/bare", func(b *testing.B) {
				benchmarkTLS(b, protocol == "HTTP2", writers, http.HandlerFunc(bareHandler), review)
			})
			b.Run(protocol+"/"+size.name+"/floor", func(b *testing.B) {
				benchmarkTLS(b, protocol == "HTTP2", writers, http.HandlerFunc(floorHandler), review)
			})
			b.Run(protocol+"/"+size.name+"/ours", func(b *testing.B) {
				benchmarkTLS(b, protocol == "HTTP2", writers, ours, review)
			})
		}
	}
}

func benchmarkTLS(b *testing.B, http2 bool, writers int, h http.Handler, review []byte) {
	b.Helper()

	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = http2
	server.StartTLS()
	b.Cleanup(server.Close)

	client := server.Client()
	if transport, ok := client.Transport.(*http.Transport); ok {
		transport.MaxIdleConnsPerHost = writers
	}

	var failed atomic.Int64
	b.SetBytes(int64(len(review)))
	b.ReportAllocs()
	b.ResetTimer()
	runWriters(writers, b.N, func() {
		if err := postOver(client, server.URL+"/validate/kyma", review, http2); err != nil {
			failed.Add(1)
		}
	})

	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "reviews/s")

	if n := failed.Load(); n > 0 {
		b.Fatalf("%d of %d reviews failed", n, b.N)
	}
}

// runWriters calls write n times, from that many goroutines.
func runWriters(writers, n int, write func()) {
	var left atomic.Int64
	left.Store(int64(n))
	done := make(chan struct{})

	for range writers {
		go func() {
			for left.Add(-1) >= 0 {
				write()
			}
			done <- struct{}{}
		}()
	}

	for range writers {
		<-done
	}
}

func postOver(client *http.Client, url string, review []byte, http2 bool) error {
	response, err := client.Post(url, "application/json", bytes.NewReader(review))
	if err != nil {
		return err
	}
	defer response.Body.Close()

	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || (response.ProtoMajor == 2) != http2 {
		return fmt.Errorf("answered %s over %s", response.Status, response.Proto)
	}

	return nil
}

// BenchmarkReviewLatency measures the time from the headers of a review to its decision, which the
// API server waits for. One writer sends an object of 1 MiB with another spec. Bytes and
// allocations over HTTP include those of the client.
func BenchmarkReviewLatency(b *testing.B) {
	review := benchReview(b, 1<<20, true)
	for _, way := range []string{"handler", "HTTP1.1", "HTTP2"} {
		b.Run("1MiB/"+way, func(b *testing.B) {
			times := &latencies{}
			h := newHandler(b, core.AcceptorFunc(discard), admission.Options{
				Now: time.Now, Hooks: admission.Hooks{Reviewed: times.add},
			})

			if way == "handler" {
				benchmarkHandler(b, h, review)
			} else {
				benchmarkTLS(b, way == "HTTP2", 1, h, review)
			}

			times.report(b)
		})
	}
}

// latencies are the times of all reviews.
type latencies struct {
	mu   sync.Mutex
	took []time.Duration
}

func (l *latencies) add(r hook.Review) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took = append(l.took, r.Took)
}

func (l *latencies) report(b *testing.B) {
	b.Helper()

	l.mu.Lock()
	defer l.mu.Unlock()

	slices.Sort(l.took)
	const whole = 1000

	for unit, per := range map[string]int{"p50-ms": 500, "p99-ms": 990} {
		b.ReportMetric(float64(l.took[len(l.took)*per/whole].Microseconds())/whole, unit)
	}
}

// BenchmarkDryRun measures a review that needs no decision.
func BenchmarkDryRun(b *testing.B) {
	h := newHandler(b, core.AcceptorFunc(discard), admission.Options{Now: time.Now})
	benchmarkHandler(b, h, reviewOf(b, func(q *admissionv1.AdmissionRequest) {
		q.Operation = admissionv1.Create
		q.DryRun = new(true)
		q.Object = raw(sizedWidget(1500, 1))
	}))
}
