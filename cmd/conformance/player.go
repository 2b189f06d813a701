package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/listener/listenertest"
)

// player plays a sender for one check of a receiver.
type player struct {
	settings
	material
	*verdict

	operator *coretest.Recorder // nil: not seen
	id       core.RuntimeID
}

// request is one request. Its zero value is a POST of nothing.
type request struct {
	path  string         // default: that of contract v3
	from  core.RuntimeID // default: the runtime of the check
	media string         // default: that of contract v3
	body  string
	// edit changes the connection.
	edit func(*http.Transport)
	// unsized hides the size of the body.
	unsized bool
}

// reply is the answer to a request, or the error without one.
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

// client returns a client with the certificate of a runtime. Each request has a connection of its
// own.
func (p *player) client(r *request) *http.Client {
	certificate, err := p.runtime(r.from)
	if err != nil {
		p.skip(err.Error())
	}
	transport := &http.Transport{
		TLSClientConfig: &tls.Config{
			RootCAs: p.roots, Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		},
		ForceAttemptHTTP2: true, DisableKeepAlives: true, ExpectContinueTimeout: time.Second,
	}
	if r.edit != nil {
		r.edit(transport)
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &http.Client{Transport: transport, Timeout: p.patience, CheckRedirect: stay}
}

func (p *player) send(elements ...string) *reply {
	return p.post(request{body: list(elements...)})
}

func (p *player) post(r request) *reply {
	r.from = cmp.Or(r.from, p.id)
	var body io.Reader = strings.NewReader(r.body)
	if r.unsized {
		body = io.MultiReader(body)
	}
	ctx, cancel := context.WithTimeout(p.ctx, p.patience)
	defer cancel()
	out, err := http.NewRequestWithContext(ctx, http.MethodPost,
		"https://"+p.address+cmp.Or(r.path, contract.V3.Path(p.manager)), body)
	if err != nil {
		return &reply{err: err}
	}
	out.Header.Set("Content-Type", cmp.Or(r.media, contract.V3.ContentType()))
	out.Header.Set("Expect", "100-continue") // So that a refusal is read before the body is written.
	answer, err := p.client(&r).Do(out)
	if err != nil {
		return &reply{err: err}
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, int64(contract.V3.MaxBody())))
	return &reply{
		Answer: contract.DecodeAnswer(answer.StatusCode, text, contract.V3.MaxEvents()),
		header: answer.Header, body: text, err: err,
	}
}

func (p *player) forwarder(runtime core.RuntimeID) core.Forwarder {
	relay := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got := p.post(request{from: runtime, body: string(body)})
		maps.Copy(w.Header(), got.header)
		w.WriteHeader(cmp.Or(got.Status, http.StatusBadGateway))
		_, _ = w.Write(got.body)
	}
	return listenertest.Forwarder(http.HandlerFunc(relay), core.Peer{ID: runtime})
}
