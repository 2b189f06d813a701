package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// arrival is a request of the sender under test. The goroutine that answers the request sets all
// fields. They do not change after the arrival is in the list of [farEnd].
type arrival struct {
	*http.Request

	raw      []byte
	batch    core.Batch
	at, done time.Time
	response response
	overlaps bool // it came before the previous request was answered
}

// response is the answer to a request. The zero value acknowledges it, as its contract does.
type response struct {
	status      int
	reason      string
	media, body string // they replace the reason
	retryAfter  string
	location    string
	recheck     string // the time of a check
	failed      map[int]contract.Refusal
	// cut closes the connection without an answer.
	cut bool
}

// farEnd is the receiver that a sender under test sends to. Each check gets a new one.
type farEnd struct {
	settings
	*verdict

	// sender is the process under test.
	sender *process
	// hellos counts TLS handshakes that began.
	hellos atomic.Int64

	lock     sync.Mutex // It guards arrivals and open.
	arrivals []*arrival
	open     int
	news     chan struct{}
	// answer decides on the answer to a request. Nil: all are acknowledged.
	answer func(*arrival) response
}

const (
	runtimeID = "judge/1" // The ID must be escaped in a URL.
	owner     = "kcp-system/judge"
)

func (f *farEnd) serve(ca *testpki.CA, opts testpki.Options) {
	l, err := (&net.ListenConfig{}).Listen(f.ctx, "tcp", cmp.Or(f.address, "127.0.0.1:0"))
	f.must(err)
	f.address = l.Addr().String()
	server, err := ca.Server("judge", opts)
	f.must(err)
	s := &http.Server{Handler: f, ReadHeaderTimeout: f.patience, ErrorLog: log.New(io.Discard, "", 0)}
	s.TLSConfig = &tls.Config{
		MinVersion: tls.VersionTLS12, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: f.ca.Pool(),
		Certificates: []tls.Certificate{server.TLS},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			f.hellos.Add(1)
			f.wake()
			return nil, nil
		},
	}

	go func() { _ = s.ServeTLS(l, "", "") }()
	context.AfterFunc(f.ctx, func() { _ = s.Close() })
}

func (f *farEnd) startSender() {
	leaf, err := f.ca.Client(runtimeID, testpki.Options{})
	f.must(err)
	f.lock.Lock() // The first request waits, because its answer may need the sender.
	defer f.lock.Unlock()

	f.sender, err = f.start(f.ctx, leaf, func([]byte) {})
	f.must(err)
}

func (f *farEnd) changed(names ...string) {
	for _, name := range names {
		_, _ = fmt.Fprintf(f.sender.stdin, "changed default %s\n", name)
	}
}

func (f *farEnd) stopSender() {
	_ = f.sender.stdin.Close()
	select {
	case <-f.sender.ended:
	case <-time.After(f.patience):
		f.Fatalf("the sender runs on after the end of its input")
	}
}

func (f *farEnd) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a := &arrival{Request: r, at: time.Now()}
	f.lock.Lock()
	f.open++
	a.overlaps = f.open > 1
	f.lock.Unlock()

	if err := f.readArrival(a); err != nil {
		f.Errorf("the request is invalid: %v", err)
	}
	if f.answer != nil {
		a.response = f.answer(a)
	}

	f.lock.Lock()
	a.done = time.Now()
	f.open--
	f.arrivals = append(f.arrivals, a)
	f.lock.Unlock()
	a.response.write(w, f.contract)
	f.wake()
}

// readArrival reads the body of a request, and decodes the body if the request follows the
// contract.
func (f *farEnd) readArrival(a *arrival) (err error) {
	a.raw, err = io.ReadAll(io.LimitReader(a.Body, 1<<20))
	if err != nil {
		return err
	}
	if a.Method != http.MethodPost || a.URL.EscapedPath() != f.contract.Path(f.manager) {
		return fmt.Errorf("%s %s", a.Method, a.URL)
	}

	a.batch, err = f.contract.Decode(a.raw)
	return err
}

func (r *response) write(w http.ResponseWriter, version contract.Version) {
	if r.cut {
		panic(http.ErrAbortHandler)
	}

	for name, value := range map[string]string{
		"Retry-After": r.retryAfter, "Location": r.location, contract.RecheckAfterHeader: r.recheck,
	} {
		if value != "" {
			w.Header().Set(name, value)
		}
	}

	if r.reason+r.body != "" {
		w.Header().Set("Content-Type", cmp.Or(r.media, plain))
	}

	w.WriteHeader(cmp.Or(r.status, version.Status()))
	if r.reason != "" {
		answer := contract.Answer{Refusal: contract.Refusal{Reason: core.Reason(r.reason)}, Failed: r.failed}
		body, _ := answer.Body()
		_, _ = w.Write(body)
	}

	_, _ = io.WriteString(w, r.body)
}

func (f *farEnd) wake() {
	select {
	case f.news <- struct{}{}:
	default:
	}
}

func (f *farEnd) seen() []*arrival {
	f.lock.Lock()
	defer f.lock.Unlock()
	return slices.Clone(f.arrivals)
}

func (f *farEnd) await(what string, enough func(all []*arrival) bool) []*arrival {
	return f.awaitFor(f.patience, what, enough)
}

func (f *farEnd) awaitFor(most time.Duration, what string, enough func(all []*arrival) bool) []*arrival {
	for late := time.After(most); ; {
		if all := f.seen(); enough(all) {
			return all
		}

		select {
		case <-f.news:
		case <-late:
			all := append([]*arrival{{}}, f.seen()...)
			f.Fatalf("%s: not in %v, after %d requests. The last: %.250q", what, most, len(all)-1, all[len(all)-1].raw)
		case <-f.ctx.Done():
			f.must(f.ctx.Err())
		}
	}
}

func (a *arrival) find(name string) int {
	return slices.IndexFunc(a.batch.Events, func(e core.Numbered) bool { return e.Watched.Name == name && !e.Resync })
}

func (a *arrival) event(name string) *core.Numbered { return &a.batch.Events[a.find(name)] }

func with(all []*arrival, name string) []*arrival {
	return slices.DeleteFunc(slices.Clone(all), func(a *arrival) bool { return a.find(name) < 0 })
}

func took(names ...string) func(all []*arrival) bool {
	return func(all []*arrival) bool {
		return !slices.ContainsFunc(names, func(name string) bool {
			isTaken := func(a *arrival) bool { return a.response.takes(a.find(name)) }
			return !slices.ContainsFunc(with(all, name), isTaken)
		})
	}
}

func (r *response) takes(index int) bool {
	_, refused := r.failed[index]
	if r.cut {
		return false
	}
	if len(r.failed) > 0 && !refused {
		return true
	}

	isAccepted := r.status == http.StatusAccepted && r.body == ""
	return r.status == 0 || isAccepted
}

func resyncs(all []*arrival) (n int) {
	for _, a := range all {
		for i, e := range a.batch.Events {
			if e.Resync && e.Owner.Name == "" && a.response.takes(i) {
				n++
			}
		}
	}
	return n
}

func objects(n, length int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = strings.Repeat("x", max(0, length-len(strconv.Itoa(i)))) + strconv.Itoa(i)
	}
	return names
}
