package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

type player struct {
	settings
	*verdict

	operator *coretest.Recorder // nil: not seen
	id       core.RuntimeID
}

// request is a request of a trial. An empty field means a correct request.
type request struct {
	path        string // default: the path of contract v3
	media       string // default: the media type of contract v3
	body        string
	length      int64            // the stated length; default: the length of the body, -1: none
	version     uint16           // the newest TLS version; default: 1.3
	certificate *tls.Certificate // default: the certificate of the check's runtime
}

type reply struct {
	contract.Answer

	header http.Header
	body   []byte
	err    error
}

func (r *reply) String() string {
	if r.err != nil {
		return r.err.Error()
	}
	return fmt.Sprintf("%d %.200q", r.Status, r.body)
}

func (p *player) certificate(ca *testpki.CA, id core.RuntimeID, opts testpki.Options) *tls.Certificate {
	leaf, err := ca.Client(string(id), opts)
	p.must(err)
	return &leaf.TLS
}

func (p *player) client(certificate *tls.Certificate, version uint16) *http.Client {
	roots := p.ca.Pool()
	if p.given != nil {
		roots = p.given.Roots
	}
	return &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{
				RootCAs: roots, MinVersion: tls.VersionTLS12, MaxVersion: version,
				// The client also sends a certificate of a CA that the receiver does not know.
				GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
					return certificate, nil
				},
			},
			ForceAttemptHTTP2: true, DisableKeepAlives: true, ExpectContinueTimeout: time.Second,
		},
		Timeout:       p.patience,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

func (p *player) post(r request) *reply {
	switch {
	case r.certificate == nil && p.given != nil:
		r.certificate = p.given.Certificate
	case r.certificate == nil:
		r.certificate = p.certificate(p.ca, p.id, testpki.Options{})
	}

	ctx, cancel := context.WithTimeout(p.ctx, p.patience)
	defer cancel()

	out, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://"+p.address+cmp.Or(r.path, contract.V3.Path(p.manager)), strings.NewReader(r.body))
	if err != nil {
		return &reply{err: err}
	}

	out.ContentLength = cmp.Or(r.length, out.ContentLength)
	out.Header.Set("Content-Type", cmp.Or(r.media, contract.V3.ContentType()))
	out.Header.Set("Expect", "100-continue") // So that a refusal is read before the body is written.
	answer, err := p.client(r.certificate, r.version).Do(out)
	if err != nil {
		return &reply{err: err}
	}
	defer func() { _ = answer.Body.Close() }()

	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(contract.V3.MaxBody())))
	if err != nil {
		return &reply{err: err}
	}

	return &reply{
		Answer: contract.DecodeAnswer(answer.StatusCode, text, contract.V3.MaxEvents()),
		header: answer.Header, body: text,
	}
}

func (p *player) forwarder(runtime core.RuntimeID) core.Forwarder {
	if p.given != nil {
		p.skip("needs a certificate of another runtime")
	}

	relay := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := p.post(request{body: string(body), certificate: p.certificate(p.ca, runtime, testpki.Options{})})
		maps.Copy(w.Header(), got.header)
		w.WriteHeader(cmp.Or(got.Status, http.StatusBadGateway))
		_, _ = w.Write(got.body)
	}

	return listenertest.Forwarder(http.HandlerFunc(relay), core.Peer{ID: runtime})
}

func (p *player) try(t *trial) {
	const class = 100
	got := p.post(t.request)
	for n := 1; n < t.most && got.Status == accepted; n++ {
		got = p.post(t.request)
	}

	for n := 0; p.given != nil && got.Status == tooFast && t.most == 0 && n < 10; n++ {
		<-time.After(time.Second) // All rules use the share of one runtime.
		got = p.post(t.request)
	}

	matches, _ := path.Match(t.reason, string(got.Reason))
	seconds, _ := strconv.Atoi(got.header.Get("Retry-After"))

	switch {
	case !slices.Contains(t.want, got.Status) && !slices.Contains(t.want, got.Status/class):
		p.Errorf("%s: answered %v, want %d", t.what, got, t.want)
	case got.err == nil && !matches:
		p.Errorf("%s: the reason is %q, want %q in a JSON body", t.what, got.Reason, t.reason)
	case got.Status == tooFast && seconds < 1:
		p.Errorf("%s: Retry-After is %q, want seconds", t.what, got.header.Get("Retry-After"))
	case got.Status != partial && len(got.Failed) > 0:
		p.Errorf("%s: names events: %v", t.what, got)
	case !isRecheck(got):
		p.Errorf("%s: %s is %q with status %d, want 1 to 60000 with 202, or none", t.what,
			contract.RecheckAfterHeader, got.header.Get(contract.RecheckAfterHeader), got.Status)
	case t.rule == "accepted" && len(got.body) > 0:
		p.Errorf("%s: the acknowledgement has a body: %v", t.what, got)
	}

	p.observe(t)
}

// isRecheck reports whether an answer names a valid check, or names none.
func isRecheck(got *reply) bool {
	value := got.header.Get(contract.RecheckAfterHeader)
	return value == "" || got.Status == accepted && contract.ParseRecheckAfter(value) > 0
}
