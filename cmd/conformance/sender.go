package main

import (
	"context"
	"crypto/tls"
	"fmt"
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

func judgeSender(ctx context.Context, s settings, to *report) error {
	const atOnce = 8
	var group sync.WaitGroup
	defer group.Wait()

	slots := make(chan struct{}, atOnce)
	for _, of := range to.Results {
		for _, check := range senderChecks()[of.rule.ID] {
			slots <- struct{}{}
			group.Go(func() {
				defer func() { <-slots }()

				ctx, cancel := context.WithCancel(ctx)
				defer cancel()

				to.run(ctx, of, func(v *verdict) {
					check(&farEnd{settings: s, verdict: v, news: make(chan struct{}, 1)})
				})
			})
		}
	}

	return nil
}

type check = func(*farEnd)

func senderChecks() map[string][]check {
	const (
		page    = "<html></html>"
		refused = 29 * time.Second // 30 s, minus a difference of the clocks.
	)
	wrongIndex := func(index int) response {
		const body = `{"reason":"partial","failed":[{"index":%d,"status":403}]}`
		return response{status: partial, body: fmt.Sprintf(body, index)}
	}
	checks := map[string][]check{
		"request":      {(*farEnd).checkRequest},
		"limits":       {(*farEnd).checkLimits},
		"claim":        {(*farEnd).checkClaim},
		"content":      {(*farEnd).checkContent},
		"resync-first": {(*farEnd).checkResyncFirst},
		"epoch":        {(*farEnd).checkEpoch},
		"sequence":     {(*farEnd).checkSequence},
		"merge":        {(*farEnd).checkMerge},
		"heartbeat":    {(*farEnd).checkHeartbeat},
		"last":         {(*farEnd).checkLast},
		"silent-end":   {(*farEnd).checkSilentEnd},
		"acknowledged": {(*farEnd).checkAcknowledged},
		"recheck":      {acknowledges("soon"), acknowledges("-1"), acknowledges("99999999999999999999")},
		"rotation":     {(*farEnd).checkRotation},
		"partial":      {(*farEnd).checkPartial},
		"dropped":      {drops(400, "malformed"), drops(413, "too_large"), drops(415, "unsupported_media_type")},
		"server-certificate": {
			untrusted(func(f *farEnd) { f.serve(f.ca, testpki.Options{DNSNames: []string{"other.example.com"}}) }),
			untrusted(func(f *farEnd) {
				stranger, err := testpki.NewCA("stranger", testpki.Options{})
				f.must(err)
				f.serve(stranger, testpki.Options{})
			}),
		},
		"refused-sender": {
			retries(response{status: http.StatusUnauthorized, reason: "unauthenticated"}, 1, refused),
			retries(response{status: http.StatusForbidden, reason: "san_mismatch"}, 1, refused),
			retries(response{status: malformed, media: "text/html", body: page}, 1, refused),
		},
		"redirect":    {retries(response{status: http.StatusTemporaryRedirect, location: "/elsewhere"}, 3, 0)},
		"retry":       {retries(response{cut: true}, 5, 0)},                         // The sender gets no answer.
		"backoff":     {retries(response{status: failed}, 4, 100*time.Millisecond)}, // Half of 200 ms is random.
		"retry-after": {asksToWait(tooFast, "too_fast"), asksToWait(notReady, "not_ready")},
		"foreign-success": {
			retries(response{status: http.StatusOK}, 1, 0),
			retries(response{status: accepted, media: "text/html", body: page}, 1, 0),
		},
		"kept": {
			retries(response{status: http.StatusNotFound, reason: "unknown_manager"}, 1, 0),
			retries(response{status: http.StatusNotFound, media: "text/plain", body: "404 page not found"}, 1, 0),
			retries(response{status: failed}, 1, 0),
			retries(response{status: http.StatusBadGateway, media: "text/html", body: page}, 1, 0),
			retries(response{status: notReady, reason: "panic"}, 1, 0),
			retries(response{status: http.StatusTeapot}, 1, 0),
		},
		"hostile": {
			retries(response{status: partial, body: `{"reason":"partial","failed":[{"index":`}, 1, 0),
			retries(response{status: partial, body: strings.Repeat("[", 10<<20)}, 1, 0),
			retries(response{status: notReady, retryAfter: "soon", body: "\x00\xff"}, 1, 0),
		},
		"index-outside": {retries(wrongIndex(99), 1, 0), retries(wrongIndex(-1), 1, 0)},
	}

	for _, version := range []contract.Version{contract.V1, contract.V2} {
		singles := []check{
			(*farEnd).checkRequest, (*farEnd).checkContent, asksToWait(notReady, "not_ready"),
			retries(response{status: failed}, 1, 0),
			retries(response{status: http.StatusForbidden, reason: "owner_mismatch"}, 1, 0),
		}
		if version == contract.V2 {
			singles = append(singles, (*farEnd).checkResyncFirst, drops(400, "malformed"))
		}

		for _, check := range singles {
			checks["single"] = append(checks["single"], func(f *farEnd) {
				if !f.single {
					f.skip("needs a sender that speaks contracts v1 and v2, and -single")
				}

				f.contract = version
				check(f)
			})
		}
	}

	return checks
}

// retries refuses the first requests with an object. The event keeps its number and its ID. The
// least time until it arrives again doubles with each request.
func retries(r response, times int64, least time.Duration) check {
	const longest = time.Minute // 30 s, and up to a quarter more.
	return func(f *farEnd) {
		f.begin(refuseFirst(r, times))
		f.changed("a")
		some := with(f.awaitFor(f.patience+longest, "the event after the refusal", took("a")), "a")
		first := some[0].event("a")
		for i, a := range some[1:] {
			if again := a.event("a"); again.Sequence != first.Sequence || again.ID != first.ID {
				f.Errorf("number %d and id %s became %d and %s", first.Sequence, first.ID, again.Sequence, again.ID)
			}
			if wait := a.at.Sub(some[i].done); wait < least<<i {
				f.Errorf("retry %d came after %v, want at least %v", i+1, wait, least<<i)
			}
		}
	}
}

func asksToWait(status int, reason string) check {
	return retries(response{status: status, reason: reason, retryAfter: "3"}, 1, 3*time.Second)
}

func refuseFirst(r response, times int64) func(*arrival) response {
	var refused atomic.Int64
	return func(a *arrival) response {
		if a.find("a") >= 0 && refused.Add(1) <= times {
			return r
		}
		return response{}
	}
}

func (f *farEnd) deliver(names ...string) []*arrival {
	f.begin(nil)
	f.changed(names...)
	return f.await("the events", took(names...))
}

func (f *farEnd) begin(answer func(*arrival) response) {
	f.answer = answer
	f.serve(f.ca, testpki.Options{})
	f.startSender()
}

func (f *farEnd) atFirst(names []string, answer func(*arrival) response) {
	var first sync.Once
	f.begin(func(a *arrival) response {
		first.Do(func() { f.changed(names...) })
		return answer(a)
	})
}

func (f *farEnd) checkRequest() {
	for _, a := range f.deliver("a") {
		if media := a.Header.Get("Content-Type"); media != f.contract.ContentType() {
			f.Errorf("Content-Type is %q, want %q", media, f.contract.ContentType())
		}
		if a.TLS.Version != tls.VersionTLS13 || a.TLS.PeerCertificates[0].Subject.CommonName != runtimeID {
			f.Errorf("TLS %x with the certificate of %s", a.TLS.Version, a.TLS.PeerCertificates[0].Subject)
		}
		if a.ContentLength < 0 {
			f.Errorf("states no Content-Length")
		}
	}
}

func untrusted(serve func(*farEnd)) check {
	return func(f *farEnd) {
		serve(f)
		f.startSender()
		f.changed("a")
		f.await("two attempts", func([]*arrival) bool { return f.hellos.Load() > 1 })

		if n := len(f.seen()); n > 0 {
			f.Errorf("sent %d requests to a server with a wrong certificate", n)
		}
	}
}

func (f *farEnd) checkLimits() {
	names := objects(1200, 200)
	f.atFirst(names, acknowledge)
	for _, a := range f.await("1200 events", took(names...)) {
		if n := strings.Count(string(a.raw), `"specversion"`); len(a.raw) > 262144 || n > 500 {
			f.Errorf("sends %d bytes with %d elements", len(a.raw), n)
		}
	}
}

func acknowledge(*arrival) response { return response{} }

func (f *farEnd) checkClaim() {
	ids := map[string]bool{}
	for _, a := range f.deliver("a", "b") {
		if a.batch.Source != runtimeID {
			f.Errorf("the source is %q, want the escaped id of the certificate", a.batch.Source)
		}

		for _, e := range a.batch.Events {
			if ids[e.ID] {
				f.Errorf("the id %q is that of two events", e.ID)
			}
			ids[e.ID] = true
		}
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

// checkResyncFirst requires no order of events that are sent in separate requests, because these
// requests may overtake each other.
func (f *farEnd) checkResyncFirst() {
	all := f.deliver("a")
	if f.contract.MaxEvents() == 1 {
		f.await("a resync of the runtime", func(all []*arrival) bool { return resyncs(all) > 0 })
		return
	}

	first := slices.IndexFunc(all, func(a *arrival) bool { return len(a.batch.Events) > 0 })
	ofRuntime := func(e core.Numbered) bool { return e.Resync && e.Owner.Name == "" }
	if !slices.ContainsFunc(all[first].batch.Events, ofRuntime) {
		f.Errorf("the first events have no resync of the runtime")
	}
}

func (f *farEnd) checkEpoch() {
	f.begin(nil)
	first := f.await("a request", func(all []*arrival) bool { return len(all) > 0 })[0].batch.Epoch
	f.stopSender()
	before := len(f.seen())
	f.startSender()

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

	padded := regexp.MustCompile(`"sequence"\s*:\s*"(\d*)"`)
	last := uint64(0)
	for _, a := range f.seen() {
		for _, match := range padded.FindAllStringSubmatch(string(a.raw), -1) {
			if n, _ := strconv.ParseUint(match[1], 10, 64); len(match[1]) != 20 || n != last+1 {
				f.Errorf("the sequence %q follows %d, want the next number with 20 digits", match[1], last)
			}
			last++
		}

		if a.overlaps {
			f.Errorf("two requests are in flight")
		}
	}
}

func (f *farEnd) checkMerge() {
	refuse := refuseFirst(response{status: notReady, reason: "not_ready", retryAfter: "2"}, 1)
	f.begin(func(a *arrival) response {
		r := refuse(a)
		if r.status != 0 {
			f.changed("a")
		}
		return r
	})

	f.changed("a")
	f.await("the newer event with another id", func(all []*arrival) bool {
		some := with(all, "a")
		return slices.ContainsFunc(some, func(a *arrival) bool { return a.event("a").ID != some[0].event("a").ID })
	})
}

func (f *farEnd) checkHeartbeat() {
	f.begin(nil)
	f.changed("a")
	all := f.await("a heartbeat", func(all []*arrival) bool { return len(beatsOf(all)) > 0 })
	interval := beatsOf(all)[0].batch.Heartbeat.Interval
	all = f.awaitFor(f.patience+interval, "the next heartbeats", func(all []*arrival) bool {
		return len(beatsOf(all)) > 2 && took("a")(all)
	})
	var beats, highest uint64
	for _, a := range all {
		for i := range a.batch.Events {
			highest = max(highest, a.batch.Events[i].Sequence)
		}

		if a.batch.Heartbeat == nil {
			continue
		}

		beats++
		if b := a.batch.Heartbeat; b.Number != beats || b.Interval <= 0 || b.Sequence != highest {
			f.Errorf("heartbeat %d states number %d, interval %v and sequence %d, and %d arrived",
				beats, b.Number, b.Interval, b.Sequence, highest)
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
	if !took("a")(all) {
		f.Errorf("the event is not delivered at the end of the sender, want it delivered")
	}

	f.checkLastHeartbeat(all[len(all)-1].batch.Heartbeat, deliveries(all))
}

// checkLastHeartbeat assumes that pending events are the remaining resends, which the sender does
// not send any more. There are at most two resends for each delivered event.
func (f *farEnd) checkLastHeartbeat(last *core.Heartbeat, delivered int) {
	const resends = 2
	most := int64(resends * delivered)

	switch {
	case last == nil:
		f.Errorf("the last request has no heartbeat, want one with leaving: true")
	case !last.Leaving:
		f.Errorf("the last heartbeat has no leaving: true")
	case last.Pending > most:
		f.Errorf("the last heartbeat counts %d resends that are left, and %d events were delivered: want at most %d",
			last.Pending, delivered, most)
	}
}

// deliveries counts the events and resyncs that were accepted.
func deliveries(all []*arrival) (n int) {
	for _, a := range all {
		for i := range a.batch.Events {
			if a.response.takes(i) {
				n++
			}
		}
	}
	return n
}

func (f *farEnd) checkSilentEnd() {
	f.begin(func(*arrival) response { return response{status: notReady, reason: "not_ready"} })
	f.changed("a")
	f.await("the event", func(all []*arrival) bool { return len(with(all, "a")) > 0 })
	f.stopSender()

	for _, a := range beatsOf(f.seen()) {
		if a.batch.Heartbeat.Leaving {
			f.Errorf("sends a last heartbeat, and keeps an event")
		}
	}
}

func (f *farEnd) checkAcknowledged() {
	f.deliver("a")
	f.changed("b")
	seen := map[uint64]bool{}

	for _, a := range f.await("another event", took("b")) {
		for _, e := range a.batch.Events {
			if seen[e.Sequence] {
				f.Errorf("number %d is sent again after 202", e.Sequence)
			}
			seen[e.Sequence] = true
		}
	}
}

// acknowledges accepts all events, and names a check in words that are not part of the contract.
func acknowledges(recheck string) check {
	return func(f *farEnd) {
		f.begin(func(*arrival) response { return response{recheck: recheck} })
		f.changed("a")
		f.await("an event", took("a"))
		f.changed("b")

		all := f.await("another event", took("b"))
		if n := len(with(all, "a")); n != 1 {
			f.Errorf("sends an event %d times after 202 with a check after %q", n, recheck)
		}
	}
}

func (f *farEnd) checkRotation() {
	const noticed = 10 * time.Second
	// A sender that does not notice the certificate sends its next request after 300 s.
	refusal := response{status: http.StatusUnauthorized, reason: "unauthenticated", retryAfter: "300"}
	f.begin(refuseFirst(refusal, 1))
	f.changed("a")
	old := with(f.await("the event", func(all []*arrival) bool { return len(with(all, "a")) > 0 }), "a")[0]
	renewed, err := f.ca.Client(runtimeID, testpki.Options{})
	f.must(err)
	f.must(f.sender.volume.Write(testpki.Files(renewed, f.ca)))

	all := with(f.awaitFor(f.patience+noticed, "the event with the new certificate", took("a")), "a")
	if last := all[len(all)-1].TLS.PeerCertificates[0]; last.Equal(old.TLS.PeerCertificates[0]) {
		f.Errorf("came again with the old certificate")
	}
}

func drops(status int, reason string) check {
	return func(f *farEnd) {
		f.atFirst([]string{"a", "bad", "c"}, func(a *arrival) response {
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

		all = f.await("a later event", took("d"))
		if len(with(all, "bad")) > before {
			f.Errorf("sends an event again although the receiver refused only that event with status %d", status)
		}
	}
}

func (f *farEnd) checkPartial() {
	var others atomic.Bool
	f.atFirst([]string{"a", "refused", "c"}, func(a *arrival) response {
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
