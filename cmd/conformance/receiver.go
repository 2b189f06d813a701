package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// judgeReceiver starts the receiver, unless it runs already, and tries each rule.
func judgeReceiver(ctx context.Context, s settings, to *report, _, stderr io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	m, err := newMaterial(s)
	if err != nil {
		return err
	}
	var operator *coretest.Recorder
	if len(s.command) > 0 {
		operator = &coretest.Recorder{}
		if err := startReceiver(ctx, &s, m, stderr, operator); err != nil {
			return err
		}
	}
	shared, own := sharedChecks(operator, s), receiverChecks()
	for _, of := range to.Results {
		rule := of.rule
		try := func(p *player) { p.try(rule.ID) }
		for _, check := range append(shared[rule.ID], try, own[rule.ID]) {
			if check == nil {
				continue
			}
			to.run(ctx, of, func(v *verdict) {
				p := &player{settings: s, material: m, verdict: v, operator: operator}
				p.id = core.RuntimeID("judge-" + rule.ID)
				if m.given != nil {
					p.id = core.RuntimeID(m.given.Leaf.Subject.CommonName)
				}
				switch {
				case rule.Needs >= conformance.Script && !p.script:
					p.skip("needs a receiver that follows the script")
				case rule.Needs >= conformance.Operator && p.operator == nil:
					p.skip("needs a receiver that prints its deliveries")
				}
				check(p)
			})
		}
	}
	return nil
}

// startReceiver starts the command, and waits until it serves at the address of the settings.
func startReceiver(
	ctx context.Context, s *settings, m material, stderr io.Writer, operator *coretest.Recorder,
) error {
	if s.address == "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		s.address = l.Addr().String()
		_ = l.Close()
	}
	leaf, err := m.ca.Server("receiver", testpki.Options{})
	if err != nil {
		return err
	}
	e, err := m.newEndpoint(*s, leaf)
	if err != nil {
		return err
	}
	p, err := e.start(ctx, stderr, func(line []byte) { record(operator, line) })
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	return await(ctx, e.address, p.ended)
}

// sharedChecks are those of the suite for receivers on every transport.
func sharedChecks(operator *coretest.Recorder, s settings) map[string][]func(*player) {
	shared := map[string][]func(*player){}
	options := coretest.ReceiverOptions{Patience: s.patience}
	var sender func(core.RuntimeID) core.Forwarder
	remote := coretest.RemoteReceiver{Operator: operator}
	remote.Sender = func(id core.RuntimeID) core.Forwarder { return sender(id) }
	coretest.CheckReceiver(remote, options, func(rule string, check func(coretest.T)) {
		shared[rule] = append(shared[rule], func(p *player) {
			sender = p.forwarder
			check(p)
		})
	})
	return shared
}

// receiverChecks are those that need more than a request and its answer.
func receiverChecks() map[string]func(*player) {
	return map[string]func(*player){
		"accepted":    (*player).checkAcknowledged,
		"tls":         (*player).checkTLS,
		"certificate": (*player).checkCertificates,
		"protocol":    (*player).checkProtocol,
		"elements":    (*player).checkElements,
		"invalid":     (*player).checkNoneTaken,
		"cut-off":     (*player).checkCutOff,
		"claim":       (*player).checkClaim,
		"too-fast":    (*player).checkTooFast,
		"new-epoch":   (*player).checkNewEpoch,
		"gap":         (*player).checkGap,
		"ahead":       (*player).checkAhead,
		"went-back":   (*player).checkWentBack,
	}
}

func (p *player) accepted(what string, got *reply) {
	if got.err != nil || got.Status != accepted {
		p.Errorf("%s: answered %v, want 202", what, got)
	}
}

func (p *player) checkAcknowledged() {
	got := p.send(p.changed("a"))
	p.accepted("an event", got)
	if len(got.body) > 0 {
		p.Errorf("the acknowledgement has a body: %.200q", got.body)
	}
}

func (p *player) checkTLS() {
	old := func(t *http.Transport) { t.TLSClientConfig.MaxVersion = tls.VersionTLS12 }
	if got := p.post(request{body: list(p.changed("a")), edit: old}); got.err == nil {
		p.Errorf("TLS 1.2 is answered %v, want a failed handshake", got)
	}
	p.accepted("TLS 1.3", p.send(p.changed("a")))
}

// checkCertificates shows certificates that prove nothing.
func (p *player) checkCertificates() {
	stranger, err := testpki.NewCA("stranger", testpki.Options{})
	p.must(err)
	show := func(what string, certificates ...tls.Certificate) {
		got := p.post(request{body: list(p.changed("a")), edit: func(t *http.Transport) {
			t.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
				return &append(certificates, tls.Certificate{})[0], nil
			}
		}})
		if got.err == nil && got.Status != http.StatusUnauthorized {
			p.Errorf("%s is answered %v, want 401 or a failed handshake", what, got)
		}
	}
	show("no certificate")
	for what, opts := range map[string]testpki.Options{
		"an expired certificate":             {NotAfter: time.Now().Add(-time.Minute)},
		"a certificate that is for a server": {Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}},
	} {
		if p.ca != nil {
			show(what, p.issue(p.ca, opts))
		}
	}
	show("a certificate of another CA", p.issue(stranger, testpki.Options{}))
}

func (p *player) issue(ca *testpki.CA, opts testpki.Options) tls.Certificate {
	leaf, err := ca.Client(string(p.id), opts)
	p.must(err)
	return leaf.TLS
}

func (p *player) checkProtocol() {
	var got []*reply
	for _, protocol := range []string{"http/1.1", "h2"} {
		got = append(got, p.post(request{body: list(p.changed("a")), edit: func(t *http.Transport) {
			t.ForceAttemptHTTP2 = protocol == "h2"
			t.TLSClientConfig.NextProtos = []string{protocol}
		}}))
	}
	if !slices.ContainsFunc(got, func(r *reply) bool { return r.Status == http.StatusAccepted }) {
		p.Errorf("HTTP/1.1 is answered %v, and HTTP/2 %v", got[0], got[1])
	}
}

func (p *player) checkElements() {
	got := p.send(slices.Repeat([]string{p.changed("a")}, 501)...)
	if got.Status != http.StatusBadRequest && got.Status != http.StatusRequestEntityTooLarge {
		p.Errorf("501 elements are answered %v, want 400 or 413", got)
	}
}

// checkNoneTaken expects an event behind the trials, and none of theirs.
func (p *player) checkNoneTaken() {
	p.accepted("a valid batch", p.send(p.changed("valid")))
	p.observe("the batch", func(_ int, names []string) bool { return slices.Contains(names, "valid") })
	if p.operator == nil {
		return
	}
	if _, names := p.deliveries(); slices.Contains(names, ofInvalidBatch) {
		p.Error("an event of an invalid batch was taken")
	}
}

func (p *player) checkCutOff() {
	client := p.client(&request{from: p.id})
	for range 3 {
		out, err := http.NewRequestWithContext(p.ctx, http.MethodPost, "https://"+p.address+contract.V3.Path(p.manager),
			strings.NewReader("["+p.changed("a")))
		p.must(err)
		out.ContentLength = 1 << 16
		out.Header.Set("Content-Type", contract.V3.ContentType())
		if answer, err := client.Do(out); err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode < http.StatusInternalServerError {
				p.Errorf("a body that ends early is answered %d, want 5xx", answer.StatusCode)
			}
		}
	}
	p.accepted("an event after cut-off bodies", p.send(p.changed("a")))
}

func (p *player) checkClaim() {
	got := p.send(strings.Replace(p.changed("a"), "/runtimes/", "/runtimes/not-", 1))
	if got.Status != http.StatusForbidden || got.Reason == "" || len(got.Failed) > 0 {
		p.Errorf("the source of another runtime is answered %v, want 403 with a reason", got)
	}
}

func (p *player) checkTooFast() {
	const requests, events = 100, 400
	many := slices.Repeat([]string{p.changed("a")}, events)
	for range requests {
		got := p.send(many...)
		if got.err == nil && got.Status == http.StatusAccepted {
			continue
		}
		if got.Status != http.StatusTooManyRequests || got.Reason != "too_fast" {
			p.Errorf("too many events are answered %v, want 429 with too_fast", got)
		}
		if seconds, err := strconv.Atoi(got.header.Get("Retry-After")); err != nil || seconds < 1 {
			p.Errorf("Retry-After is %q, want seconds", got.header.Get("Retry-After"))
		}
		return
	}
	p.Errorf("took %d events at once: nothing limits a runtime", requests*events)
}

// deliveries are the resyncs of the runtime that the operator enqueued, and the objects.
func (p *player) deliveries() (resyncs int, names []string) {
	for _, call := range p.operator.Calls() {
		if call.Runtime != p.id {
			continue
		}
		if call.Batch.Events[0].Resync {
			resyncs++
		} else {
			names = append(names, call.Batch.Events[0].Watched.Name)
		}
	}
	return resyncs, names
}

func (p *player) observe(what string, expected func(resyncs int, names []string) bool) {
	if p.operator == nil {
		return
	}
	for deadline := time.After(p.patience); !expected(p.deliveries()); {
		ctx, cancel := context.WithTimeout(p.ctx, time.Second)
		_ = p.operator.WaitCalls(ctx, len(p.operator.Calls())+1)
		cancel()
		select {
		case <-deadline:
			resyncs, names := p.deliveries()
			p.Fatalf("%s: the operator got %d resyncs and %v", what, resyncs, names)
		default:
		}
	}
}

func (p *player) wantResyncs(what string, n int) {
	p.observe(what, func(resyncs int, _ []string) bool { return resyncs >= n })
}

func (p *player) checkNewEpoch() {
	p.accepted("an event", p.send(p.numbered("changed", 7, dataOf("a"))))
	p.wantResyncs("a new epoch without a resync", 1)
}

// checkGap replays the example of the section.
func (p *player) checkGap() {
	change := func(sequence int) string {
		return p.numbered("changed", sequence, dataOf(fmt.Sprint("object-", sequence)))
	}
	p.accepted("1", p.send(p.numbered("resync", 1), change(2)))
	p.accepted("2", p.send(change(3), change(4)))
	p.accepted("3", p.send(change(3), strings.Replace(change(4), "epoch-1-4", "epoch-1-4-1", 1), p.beat(1, 4, "")))
	got := p.send(p.numbered("changed", 5, dataOf("failing")), change(6))
	if got.Status != http.StatusUnprocessableEntity {
		p.Errorf("4: answered %v, want 422", got)
	}
	p.accepted("5", p.send(change(7), change(5)))
	const calm = 3 * time.Second // Resyncs may be spread over some time.
	<-time.After(calm)
	if resyncs, _ := p.deliveries(); resyncs > 1 {
		p.Errorf("the operator got %d resyncs, want that of the sender only: nothing is missing", resyncs)
	}
	p.accepted("6", p.send(change(9)))
	p.wantResyncs("8 did not arrive", 2)
}

func (p *player) checkAhead() {
	p.accepted("a resync", p.send(p.numbered("resync", 1)))
	p.accepted("a heartbeat ahead", p.send(p.beat(1, 5, "")))
	p.wantResyncs("2 to 5 did not arrive", 2)
}

func (p *player) checkWentBack() {
	p.accepted("events", p.send(p.numbered("resync", 1), p.numbered("changed", 2, dataOf("a")), p.beat(1, 2, "")))
	p.accepted("a heartbeat that went back", p.send(p.beat(2, 1, "")))
	p.wantResyncs("the sequence went back", 2)
}
