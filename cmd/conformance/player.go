package main

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
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
	path    string         // default: that of contract v3
	from    core.RuntimeID // default: the runtime of the check
	media   string         // default: that of contract v3
	body    string
	edit    func(*http.Transport)
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

type trial struct {
	rule, what string
	status     int
	reason     string
	request    request
}

// The answers that most rules demand.
const (
	accepted  = http.StatusAccepted
	malformed = http.StatusBadRequest
	plain     = "application/json"
)

func (p *player) allTrials() []trial {
	return slices.Concat(p.bodyTrials(), p.eventTrials(), p.invalidTrials(), p.hostileTrials(), p.singleTrials())
}

func (p *player) try(rule string) {
	for _, t := range p.allTrials() {
		if t.rule != rule {
			continue
		}
		switch got := p.post(t.request); {
		case got.err != nil || got.Status != t.status:
			p.Errorf("%s: answered %v, want %d", t.what, got, t.status)
		case got.Reason != t.reason:
			p.Errorf("%s: the reason is %q, want %q in a JSON body", t.what, got.Reason, t.reason)
		}
	}
}

func (p *player) bodyTrials() []trial {
	const limit, tooLarge, wrongMedia = 262144, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType
	v3, body := contract.V3.ContentType(), list(p.changed("a"))
	padded := body + strings.Repeat(" ", limit-len(body))
	elements := list(strings.Repeat(p.changed("a")+",", 499) + p.changed("a"))
	nowhere := contract.V3.Path("unknown-manager")
	return []trial{
		{"media-type", "a parameter", accepted, "", request{body: body, media: v3 + "; charset=utf-8"}},
		{"media-type", plain, wrongMedia, "unsupported_media_type", request{body: body, media: plain}},
		{"unknown-length", "a body of unknown size", accepted, "", request{body: body, unsized: true}},
		{"size", "the largest body", accepted, "", request{body: padded}},
		{"size", "a body that is too large", tooLarge, "too_large", request{body: padded + " "}},
		{"elements", "500 elements", accepted, "", request{body: elements}},
		{"unknown-manager", "no operator", http.StatusNotFound, "unknown_manager", request{body: body, path: nowhere}},
	}
}

func (p *player) eventTrials() []trial {
	at := func(rule, what string, status int, reason string, elements ...string) trial {
		return trial{rule, what, status, reason, request{body: list(elements...)}}
	}
	good := func(rule, what string, elements ...string) trial { return at(rule, what, accepted, "", elements...) }
	bad := func(rule, what string, elements ...string) trial {
		return at(rule, what, malformed, "malformed", elements...)
	}
	event := func(more ...string) string { return p.element("changed", "1", more...) }
	with := func(member string) string { return event(strings.Replace(dataOf("a"), "{", "{"+member+",", 1)) }
	resync, long, data := p.element("resync", "1"), strings.Repeat("x", 513), strings.TrimPrefix(dataOf("a"), `"data":`)
	one := p.numbered("changed", 1, dataOf("a"))
	return []trial{
		good("unknown-members", "unknown members", strings.Replace(with(`"new":[null]`), "{", `{"new":{"a":[1]},`, 1)),
		bad("attributes", "an id of 513 bytes", p.element("changed", long, dataOf("a"))),
		bad("attributes", "an epoch of 513 bytes", event(`"epoch":"`+long+`"`, dataOf("a"))),
		bad("attributes", "no id", p.element("changed", "", dataOf("a"))),
		good("attributes", "an id of 512 bytes", p.element("changed", long[1:], dataOf("a"))),
		good("base64", "data_base64", event(`"data_base64":"`+base64.StdEncoding.EncodeToString([]byte(data))+`"`)),
		bad("base64", "broken data_base64", event(`"data_base64":"%"`)),
		bad("names", "a name of 254 bytes", p.changed(long[:254])),
		bad("names", "no name", p.changed("")),
		bad("names", "an owner without namespace", with(`"owner":{"name":"x"}`)),
		good("names", "a name of 253 bytes", p.changed(long[:253])),
		good("resync", "a resync without data", resync),
		good("resync", "a resync with empty data", p.element("resync", "2", `"data":{}`)),
		good("resync", "one with owner", p.element("resync", "3", `"data":{"owner":{"name":"a","namespace":"b"}}`)),
		good("again", "an event", one),
		good("again", "the event once more", one),
		good("again", "the event twice", one, one),
		good("heartbeat", "a heartbeat alone", p.beat(1, 0, "")),
		good("heartbeat", "a heartbeat behind events", p.numbered("resync", 1), p.beat(2, 1, `,"pending":1`)),
		good("heartbeat", "a heartbeat without data", p.element("heartbeat", "3")),
		good("heartbeat-limits", "32 reasons", p.beat(1, 0, `,"dropped":{`+entries(32, `"%d":1`)+`}`)),
		bad("heartbeat-limits", "33 reasons", p.beat(2, 0, `,"dropped":{`+entries(33, `"%d":1`)+`}`)),
		good("heartbeat-limits", "64 fingerprints", p.beat(3, 0, `,"caFingerprints":[`+entries(64, `"%d"`)+`]`)),
		bad("heartbeat-limits", "65 fingerprints", p.beat(4, 0, `,"caFingerprints":[`+entries(65, `"%d"`)+`]`)),
		good("heartbeat-limits", "a text of 512 bytes", p.beat(5, 0, `,"version":"`+long[1:]+`"`)),
		bad("heartbeat-limits", "a text of 513 bytes", p.beat(6, 0, `,"version":"`+long+`"`)),
		good("path-check", "a lone last heartbeat", p.beat(1, 0, `,"leaving":true`)),
	}
}

// ofInvalidBatch is the name of an object that must not be taken.
const ofInvalidBatch = "of-invalid-batch"

func (p *player) invalidTrials() (all []trial) {
	event := p.changed(ofInvalidBatch)
	for what, elements := range map[string][]string{
		"an empty batch":                {},
		"an epoch that is not UTF-8":    {p.element("changed", "1", "\"epoch\":\"\xff\"", dataOf(ofInvalidBatch))},
		"no kind":                       {event, p.element("changed", "1", `"data":{"watched":{"name":"x"}}`)},
		"two sources":                   {event, strings.Replace(event, "/runtimes/", "/runtimes/x", 1)},
		"two epochs":                    {p.numbered("changed", 1, dataOf("x")), event},
		"an event behind the heartbeat": {event, p.element("heartbeat", "1"), event},
		"two heartbeats":                {event, p.element("heartbeat", "1"), p.element("heartbeat", "2")},
		"an unknown type":               {event, p.element("created", "1", dataOf("x"))},
		"another source":                {strings.Replace(event, "/runtimes/", "", 1)},
		"a negative sequence":           {event, p.element("resync", "1", `"sequence":"-1"`)},
		"another specversion":           {strings.Replace(event, `"1.0"`, `"0.3"`, 1)},
	} {
		all = append(all, trial{"invalid", what, malformed, "malformed", request{body: list(elements...)}})
	}
	return all
}

func (p *player) hostileTrials() (all []trial) {
	event := p.changed("a")
	for what, body := range map[string]string{
		"nothing": "", "null": "null", "an object": "{}", "half a list": "[" + event, "text behind": list(event) + "x",
		"deep lists": strings.Repeat("[", 1<<17), "deep objects": strings.Repeat(`{"a":`, 1<<15), "NUL": "[\x00]",
		"many members":  "[{" + strings.Repeat(`"":0,`, 50_000) + `"":0}]`,
		"a huge number": list(strings.Replace(event, `"data":{`, `"data":{"generation":1e999999,`, 1)),
		"a wrong time":  list(p.element("changed", "1", `"time":"yesterday"`, dataOf("a"))),
	} {
		all = append(all, trial{"hostile", what, malformed, "malformed", request{body: body}})
	}
	return append(all, trial{"hostile", "an event after all", accepted, "", request{body: list(event)}})
}

func (p *player) singleTrials() (all []trial) {
	const event = `"watched":{"Namespace":"default","Name":"demo"},` +
		`"watchedGvk":{"group":"apps","version":"v1","kind":"Deployment"}}`
	bodies := map[contract.Version]string{
		contract.V1: fmt.Sprintf(`{"owner":{"Namespace":"kcp-system","Name":%q},%s`, p.id, event),
		contract.V2: "{" + event,
	}
	for version, body := range bodies {
		large := body + strings.Repeat(" ", 16385-len(body))
		for _, t := range []struct {
			what        string
			status      int
			reason      string
			body, media string
		}{
			{"an event", http.StatusOK, "", body, plain},
			{"a broken event", malformed, "malformed", body[1:], plain},
			{"another type", http.StatusUnsupportedMediaType, "unsupported_media_type", body, "text/plain"},
			{"16385 bytes", http.StatusRequestEntityTooLarge, "too_large", large, plain},
		} {
			r := request{path: version.Path(p.manager), body: t.body, media: t.media}
			all = append(all, trial{"single", string(version) + ", " + t.what, t.status, t.reason, r})
		}
	}
	resync := strings.NewReplacer("default", "", "demo", "resync", "apps", "operator.kyma-project.io",
		`"v1"`, `"v1beta2"`, "Deployment", "Watcher").Replace(bodies[contract.V2])
	r := request{path: contract.V2.Path(p.manager), body: resync, media: plain}
	return append(all, trial{"single", "v2, a resync", http.StatusOK, "", r})
}

func list(elements ...string) string { return "[" + strings.Join(elements, ",") + "]" }

func entries(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

// element returns a CloudEvent of the runtime of the check, with more members.
func (p *player) element(kind, id string, more ...string) string {
	const attributes = `"specversion":"1.0","type":"com.github.runtime-watcher.%s","source":"/runtimes/%s"`
	head := fmt.Sprintf(attributes, kind, p.id)
	return "{" + strings.Join(append([]string{head, fmt.Sprintf(`"id":%q`, id)}, more...), ",") + "}"
}

func dataOf(name string) string {
	return fmt.Sprintf(`"data":{"watched":{"namespace":"default","name":%q},`, name) +
		`"watchedGvk":{"version":"v1","kind":"ConfigMap"}}`
}

// changed returns an event without number.
func (p *player) changed(name string) string { return p.element("changed", name, dataOf(name)) }

func (p *player) numbered(kind string, sequence int, more ...string) string {
	number := fmt.Sprintf(`"epoch":"epoch-1","sequence":"%020d"`, sequence)
	return p.element(kind, fmt.Sprint("epoch-1-", sequence), append([]string{number}, more...)...)
}

func (p *player) beat(number, sequence int, more string) string {
	return p.element("heartbeat", fmt.Sprint("beat-", number), `"epoch":"epoch-1"`,
		fmt.Sprintf(`"data":{"number":%d,"intervalMs":30000,"sequence":%d%s}`, number, sequence, more))
}
