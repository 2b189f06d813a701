package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"regexp"
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

// judgeSender tries each rule with a sender of its own.
func judgeSender(ctx context.Context, s settings, to *report, stdout, stderr io.Writer) error {
	m, err := newMaterial(settings{})
	if err != nil {
		return err
	}
	var group sync.WaitGroup
	defer group.Wait()
	slots := make(chan struct{}, 1)
	if len(s.command) > 0 {
		const atOnce = 8
		slots = make(chan struct{}, atOnce)
	}
	for _, of := range to.Results {
		for _, check := range senderChecks()[of.rule.ID] {
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				to.run(ctx, of, func(v *verdict) {
					check(&farEnd{
						settings: s, material: m, verdict: v, stdout: stdout, stderr: stderr,
						news: make(chan struct{}, 1),
					})
				})
			})
		}
	}
	return nil
}

// The statuses that more than one check answers with.
const (
	partial  = http.StatusUnprocessableEntity
	tooFast  = http.StatusTooManyRequests
	notReady = http.StatusServiceUnavailable
)

type check = func(*farEnd)

func senderChecks() map[string][]check {
	const failed = `{"reason":"partial","failed":[{"index":%d,"status":403}]}`
	return map[string][]check{
		"single": slices.Concat(
			single(contract.V1, (*farEnd).checkRequest, (*farEnd).checkContent),
			single(contract.V2, (*farEnd).checkRequest, (*farEnd).checkContent, (*farEnd).checkResyncFirst,
				drops(400, "malformed")),
			single(contract.V1, singleKept()...), single(contract.V2, singleKept()...),
		),
		"refused-sender": {
			refusedFor(response{status: http.StatusUnauthorized, reason: "unauthenticated"}),
			refusedFor(response{status: http.StatusForbidden, reason: "san_mismatch"}),
			refusedFor(response{status: http.StatusBadRequest, media: "text/html", body: "<html></html>"}),
		},
		"rotation": {(*farEnd).checkRotation},
		"request":  {(*farEnd).checkRequest},
		"server-certificate": {
			untrusted(func(f *farEnd) { f.serve(f.ca, testpki.Options{DNSNames: []string{"other.example.com"}}) }),
			untrusted(func(f *farEnd) {
				stranger, err := testpki.NewCA("stranger", testpki.Options{})
				f.must(err)
				f.serve(stranger, testpki.Options{})
			}),
		},
		"redirect":     {(*farEnd).checkRedirect},
		"limits":       {(*farEnd).checkLimits},
		"claim":        {(*farEnd).checkClaim},
		"content":      {(*farEnd).checkContent},
		"resync-first": {(*farEnd).checkResyncFirst},
		"epoch":        {(*farEnd).checkEpoch},
		"sequence":     {(*farEnd).checkSequence},
		"retry":        {(*farEnd).checkRetry},
		"merge":        {(*farEnd).checkMerge},
		"heartbeat":    {(*farEnd).checkHeartbeat},
		"last":         {(*farEnd).checkLast},
		"silent-end":   {(*farEnd).checkSilentEnd},
		"acknowledged": {(*farEnd).checkAcknowledged},
		"foreign-success": {
			keeps(response{status: http.StatusOK}),
			keeps(response{status: http.StatusAccepted, media: "text/html", body: "<html></html>"}),
		},
		"retry-after": {waits(tooFast, "too_fast"), waits(notReady, "not_ready")},
		"backoff":     {(*farEnd).checkBackoff},
		"dropped":     {drops(400, "malformed"), drops(413, "too_large"), drops(415, "unsupported_media_type")},
		"kept": {
			keeps(response{status: http.StatusNotFound, reason: "unknown_manager"}),
			keeps(response{status: http.StatusNotFound, media: "text/plain", body: "404 page not found"}),
			keeps(response{status: http.StatusInternalServerError}),
			keeps(response{status: http.StatusBadGateway, media: "text/html", body: "<html></html>"}),
			keeps(response{status: notReady, reason: "panic"}),
			keeps(response{status: http.StatusTeapot}),
		},
		"hostile": {
			keeps(response{status: partial, body: `{"reason":"partial","failed":[{"index":`}),
			keeps(response{status: partial, body: strings.Repeat("[", 10<<20)}),
			keeps(response{status: notReady, retryAfter: "soon", body: "\x00\xff"}),
		},
		"partial": {(*farEnd).checkPartial},
		"index-outside": {
			keeps(response{status: partial, body: fmt.Sprintf(failed, 99)}),
			keeps(response{status: partial, body: fmt.Sprintf(failed, -1)}),
		},
	}
}

// single makes checks of one of the contracts v1 and v2.
func single(version contract.Version, checks ...check) (all []check) {
	for _, check := range checks {
		all = append(all, func(f *farEnd) {
			if !f.single {
				f.skip("needs a sender that speaks contracts v1 and v2, and -single")
			}
			f.contract = version
			check(f)
		})
	}
	return all
}

func singleKept() []check {
	return []check{
		keeps(response{status: http.StatusInternalServerError}),
		keeps(response{status: http.StatusForbidden, reason: "owner_mismatch"}),
		waits(notReady, "not_ready"),
	}
}

// deliver makes the sender deliver events about objects, and returns all requests.
func (f *farEnd) deliver(names ...string) []*arrival {
	f.begin(nil)
	f.changed(names...)
	return f.await("the events", took(names...))
}

func (f *farEnd) begin(answer func(*arrival) response) {
	f.answer = answer
	f.serve(f.ca, testpki.Options{})
	f.start()
}

func (f *farEnd) checkRequest() {
	for _, a := range f.deliver("a") {
		if a.Method != http.MethodPost || a.URL.Path != f.contract.Path(f.manager) {
			f.Errorf("sends %s %s", a.Method, a.URL)
		}
		if media := a.Header.Get("Content-Type"); media != f.contract.ContentType() {
			f.Errorf("the media type is %q", media)
		}
		if a.TLS.Version != tls.VersionTLS13 || a.TLS.PeerCertificates[0].Subject.CommonName != runtimeID {
			f.Errorf("TLS %x with the certificate of %s", a.TLS.Version, a.TLS.PeerCertificates[0].Subject)
		}
		if a.ContentLength < 0 {
			f.Error("states no Content-Length")
		}
	}
}

// untrusted waits for two attempts at a server that must not be trusted.
func untrusted(serve func(*farEnd)) func(*farEnd) {
	return func(f *farEnd) {
		serve(f)
		f.start()
		f.changed("a")
		f.await("two attempts", func([]*arrival) bool { return f.hellos.Load() > 1 })
		if n := len(f.seen()); n > 0 {
			f.Errorf("sent %d requests to a server with a wrong certificate", n)
		}
	}
}

func (f *farEnd) checkRedirect() {
	var n atomic.Int64
	f.begin(func(a *arrival) response {
		if n.Add(1) > 3 || a.URL.Path == "/elsewhere" {
			return response{}
		}
		return response{status: http.StatusTemporaryRedirect, location: "/elsewhere"}
	})
	f.changed("a")
	f.await("the event after redirects", func(all []*arrival) bool {
		if slices.ContainsFunc(all, func(a *arrival) bool { return a.URL.Path == "/elsewhere" }) {
			f.Fatal("follows a redirect")
		}
		return took("a")(all)
	})
}

// checkLimits holds the first answer up, so that many events wait.
func (f *farEnd) checkLimits() {
	names := objects(1200, 200)
	var first sync.Once
	f.begin(func(*arrival) response {
		first.Do(func() { f.changed(names...) })
		return response{}
	})
	for _, a := range f.await("1200 events", took(names...)) {
		if n := strings.Count(string(a.raw), `"specversion"`); len(a.raw) > 262144 || n > 500 {
			f.Errorf("sends %d bytes with %d elements", len(a.raw), n)
		}
	}
}

func (f *farEnd) checkClaim() {
	ids, all := map[string]bool{}, f.deliver("a", "b")
	for _, a := range all {
		if a.batch.Source != runtimeID {
			f.Errorf("the source is %q, want the escaped id of the certificate", a.batch.Source)
		}
	}
	for _, e := range eventsOf(all) {
		if ids[e.ID] {
			f.Errorf("the id %q is that of two events", e.ID)
		}
		ids[e.ID] = true
	}
}

func (f *farEnd) checkContent() {
	for _, a := range with(f.deliver("demo"), "demo") {
		e := a.event("demo")
		if e.Watched.Namespace != "default" || e.WatchedGVK.Kind != "ConfigMap" || e.WatchedGVK.Version != "v1" {
			f.Errorf("the change of ConfigMap default/demo arrives as %s %s", e.WatchedGVK, e.Watched)
		}
		if f.contract.NeedsOwner() && e.Owner.String() != owner {
			f.Errorf("the owner %s arrives as %s", owner, e.Owner)
		}
	}
}

// checkResyncFirst asks for no order of events that travel alone: their requests may overtake each
// other.
func (f *farEnd) checkResyncFirst() {
	all := f.deliver("a")
	if f.contract.MaxEvents() == 1 {
		f.await("a resync of the runtime", func(all []*arrival) bool { return resyncs(all) > 0 })
		return
	}
	first := slices.IndexFunc(all, func(a *arrival) bool { return len(a.batch.Events) > 0 })
	ofRuntime := func(e core.Numbered) bool { return e.Resync && e.Owner.Name == "" }
	if !slices.ContainsFunc(all[first].batch.Events, ofRuntime) {
		f.Error("the first events have no resync of the runtime")
	}
}

func (f *farEnd) checkEpoch() {
	f.begin(nil)
	first := f.await("a request", func(all []*arrival) bool { return len(all) > 0 })[0].batch.Epoch
	f.stopSender()
	before := len(f.seen())
	f.start()
	all := f.await("a request of the second process", func(all []*arrival) bool { return len(all) > before })
	if second := all[before].batch.Epoch; first == "" || first == second {
		f.Errorf("the epochs of two processes are %q and %q", first, second)
	}
}

func (f *farEnd) checkSequence() {
	f.begin(nil)
	names := objects(20, 3)
	for _, name := range names {
		f.changed(name)
		f.await("the event", took(name))
	}
	padded, last := regexp.MustCompile(`"sequence"\s*:\s*"(\d*)"`), uint64(0)
	for _, a := range f.seen() {
		for _, match := range padded.FindAllStringSubmatch(string(a.raw), -1) {
			if n, _ := strconv.ParseUint(match[1], 10, 64); len(match[1]) != 20 || n != last+1 {
				f.Errorf("the sequence %q follows %d, want the next number with 20 digits", match[1], last)
			}
			last++
		}
		if a.overlaps {
			f.Error("two requests are in flight")
		}
	}
}

// checkRetry cuts connections, so that the sender knows no answer.
func (f *farEnd) checkRetry() {
	var cuts atomic.Int64
	f.begin(func(a *arrival) response { return response{cut: a.find("a") >= 0 && cuts.Add(1) < 6} })
	f.changed("a")
	again := with(f.await("the event once more", took("a")), "a")
	for _, a := range again[1:] {
		want, have := again[0].event("a"), a.event("a")
		if have.Sequence != want.Sequence || have.ID != want.ID {
			f.Errorf("number %d and id %s became %d and %s in a retry", want.Sequence, want.ID, have.Sequence, have.ID)
		}
	}
}

// checkMerge changes an object again while its event waits.
func (f *farEnd) checkMerge() {
	var first sync.Once
	f.begin(func(a *arrival) (r response) {
		if a.find("a") >= 0 {
			first.Do(func() {
				f.changed("a")
				r = response{status: notReady, reason: "not_ready", retryAfter: "2"}
			})
		}
		return r
	})
	f.changed("a")
	f.await("the newer event with another id", func(all []*arrival) bool {
		some := with(all, "a")
		return slices.ContainsFunc(some, func(a *arrival) bool {
			return a.event("a").ID != some[0].event("a").ID
		})
	})
}

func (f *farEnd) checkHeartbeat() {
	f.begin(nil)
	f.changed("a")
	var beats, highest uint64
	most := f.patience
	all := f.await("a heartbeat", func(all []*arrival) bool { return len(beatsOf(all)) > 0 })
	most += beatsOf(all)[0].batch.Heartbeat.Interval
	all = f.awaitFor(most, "the next heartbeats", func(all []*arrival) bool {
		return len(beatsOf(all)) > 2 && took("a")(all)
	})
	for _, a := range all {
		for i := range a.batch.Events {
			highest = max(highest, a.batch.Events[i].Sequence)
		}
		beat := a.batch.Heartbeat
		if beat == nil {
			continue
		}
		beats++
		if beat.Number != beats || beat.Interval <= 0 || beat.Sequence != highest {
			f.Errorf("heartbeat %d states number %d, interval %v and sequence %d, and %d arrived",
				beats, beat.Number, beat.Interval, beat.Sequence, highest)
		}
	}
}

func beatsOf(all []*arrival) []*arrival {
	return slices.DeleteFunc(slices.Clone(all), func(a *arrival) bool { return a.batch.Heartbeat == nil })
}

func (f *farEnd) checkLast() {
	f.begin(nil)
	f.await("the resync", func(all []*arrival) bool { return resyncs(all) > 0 })
	f.changed("a")
	f.stopSender()
	all := f.seen()
	last := all[len(all)-1].batch.Heartbeat
	if !took("a")(all) || last == nil || !last.Leaving || last.Pending > 0 {
		f.Errorf("the event is delivered: %v; the last heartbeat is %+v, want a leaving one", took("a")(all), last)
	}
}

// checkSilentEnd stops a sender that could not deliver.
func (f *farEnd) checkSilentEnd() {
	f.begin(func(*arrival) response { return response{status: notReady, reason: "not_ready"} })
	f.changed("a")
	f.await("the event", func(all []*arrival) bool { return len(with(all, "a")) > 0 })
	f.stopSender()
	for _, a := range beatsOf(f.seen()) {
		if a.batch.Heartbeat.Leaving {
			f.Error("sends a last heartbeat, and keeps an event")
		}
	}
}

func (f *farEnd) checkAcknowledged() {
	f.deliver("a")
	f.changed("b")
	seen := map[uint64]bool{}
	for _, e := range eventsOf(f.await("another event", took("b"))) {
		if seen[e.Sequence] {
			f.Errorf("number %d is sent again after 202", e.Sequence)
		}
		seen[e.Sequence] = true
	}
}

// refuseOnce refuses the first requests with an object.
func refuseOnce(r response, times int) func(*arrival) response {
	var refused atomic.Int64
	return func(a *arrival) response {
		if a.find("a") >= 0 && refused.Add(1) <= int64(times) {
			return r
		}
		return response{}
	}
}

// retried refuses an event, and returns the least time between two attempts.
func (f *farEnd) retried(r response, times int, most time.Duration) (waits []time.Duration) {
	f.begin(refuseOnce(r, times))
	f.changed("a")
	some := with(f.awaitFor(most, "the event after the refusal", took("a")), "a")
	for i := range some[1:] {
		waits = append(waits, some[i+1].at.Sub(some[i].done))
	}
	if some[0].event("a").Sequence != some[len(some)-1].event("a").Sequence {
		f.Error("the event has another number after the refusal")
	}
	return waits
}

func keeps(r response) func(*farEnd) {
	const longest = 40 * time.Second // 30 s, and up to a quarter more.
	return func(f *farEnd) { f.retried(r, 1, f.patience+longest) }
}

func waits(status int, reason string) func(*farEnd) {
	const seconds = 3 * time.Second
	return func(f *farEnd) {
		got := f.retried(response{status: status, reason: reason, retryAfter: "3"}, 1, f.patience+seconds)
		if got[0] < seconds {
			f.Errorf("came again after %v, and Retry-After is 3", got[0])
		}
	}
}

// refusedFor expects the wait of a sender that is refused itself.
func refusedFor(r response) func(*farEnd) {
	const wait, clock = 30 * time.Second, time.Second
	return func(f *farEnd) {
		if got := f.retried(r, 1, f.patience+2*wait); got[0] < wait-clock {
			f.Errorf("came again after %v, want 30 s", got[0])
		}
	}
}

func (f *farEnd) checkBackoff() {
	const shortest = 100 * time.Millisecond // Half of 200 ms is random.
	for i, wait := range f.retried(response{status: http.StatusInternalServerError}, 4, f.patience) {
		if wait < shortest<<i {
			f.Errorf("retry %d came after %v, want at least %v", i+1, wait, shortest<<i)
		}
	}
}

func (f *farEnd) checkRotation() {
	f.begin(refuseOnce(response{status: http.StatusUnauthorized, reason: "unauthenticated"}, 1))
	f.changed("a")
	old := with(f.await("the event", func(all []*arrival) bool { return len(with(all, "a")) > 0 }), "a")[0]
	renewed, err := f.ca.Client(runtimeID, testpki.Options{})
	f.must(err)
	f.must(f.endpoint.volume.Write(testpki.Files(renewed, f.ca)))
	const wait = 30 * time.Second
	all := with(f.awaitFor(f.patience+2*wait, "the event with the new certificate", took("a")), "a")
	if last := all[len(all)-1].TLS.PeerCertificates[0]; last.Equal(old.TLS.PeerCertificates[0]) {
		f.Error("came again with the old certificate")
	}
}

// drops refuses every request with one object.
func drops(status int, reason string) func(*farEnd) {
	return func(f *farEnd) {
		var first sync.Once
		f.begin(func(a *arrival) response {
			first.Do(func() { f.changed("a", "bad", "c") })
			if a.find("bad") < 0 {
				return response{}
			}
			return response{status: status, reason: reason}
		})
		all := f.await("the other events, and a resync that stands in", func(all []*arrival) bool {
			return took("a", "c")(all) && resyncs(all) > 1
		})
		before := len(with(all, "bad"))
		f.changed("d")
		if all = f.await("a later event", took("d")); len(with(all, "bad")) > before {
			f.Errorf("sends the event again that got %d alone", status)
		}
	}
}

// checkPartial refuses one object by its index until later ones are delivered.
func (f *farEnd) checkPartial() {
	var first sync.Once
	var others atomic.Bool
	f.begin(func(a *arrival) response {
		first.Do(func() { f.changed("a", "refused", "c") })
		at := a.find("refused")
		if at < 0 || others.Load() {
			return response{}
		}
		return response{status: partial, reason: "partial", failed: map[int]contract.Refusal{
			at: {Status: notReady, Reason: "other", RetryAfter: time.Second},
		}}
	})
	f.await("the refused event", func(all []*arrival) bool { return len(with(all, "refused")) > 0 })
	f.changed("d")
	f.await("the other events beside a refused one", took("a", "c", "d"))
	others.Store(true)
	all := f.await("the refused event", took("refused"))
	for _, name := range []string{"a", "c"} {
		if len(with(all, name)) != 1 {
			f.Errorf("%s is sent again, and only another event was refused", name)
		}
	}
	some := with(all, "refused")
	for i := range some[1:] {
		if wait := some[i+1].at.Sub(some[i].done); wait < time.Second {
			f.Errorf("the refused event came again after %v, and retryAfter is 1", wait)
		}
	}
}
