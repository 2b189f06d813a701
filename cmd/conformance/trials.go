package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

// trial is one request to a receiver under test, with the answer and the deliveries that the rule
// demands.
type trial struct {
	rule, what string
	want       []int  // one of these statuses; 1 to 9 are a class, and 0 is a failed connection
	reason     string // a pattern of [path.Match]
	request    request
	most       int      // The most requests, while they are accepted; default: 1.
	resyncs    int      // The operator has then received at least this many of the runtime.
	calm       bool     // No more resyncs arrive within some seconds.
	objects    []string // The operator has then received these of the runtime; nil: any.
	owned      bool     // The request names an owner, which must be an object of the runtime.
}

func (t trial) with(change func(t *trial)) trial {
	change(&t)
	return t
}

// The statuses that checks expect, or with which they answer.
const (
	accepted   = http.StatusAccepted
	malformed  = http.StatusBadRequest
	tooLarge   = http.StatusRequestEntityTooLarge
	wrongMedia = http.StatusUnsupportedMediaType
	partial    = http.StatusUnprocessableEntity
	tooFast    = http.StatusTooManyRequests
	notReady   = http.StatusServiceUnavailable
	failed     = http.StatusInternalServerError
)

const plain = "application/json"

func answered(rule, what string, status int, reason string, elements ...string) trial {
	return trial{rule: rule, what: what, want: []int{status}, reason: reason, request: request{body: list(elements...)}}
}

func good(rule, what string, elements ...string) trial {
	return answered(rule, what, accepted, "", elements...)
}

func bad(rule, what string, elements ...string) trial {
	return answered(rule, what, malformed, "malformed", elements...)
}

func failing(rule, what string, want int, r request) trial {
	return trial{rule: rule, what: what, want: []int{0, want}, reason: "*", request: r}
}

func (p *player) trials() []trial {
	return slices.Concat(p.requestTrials(), p.eventTrials(), p.sequenceTrials(), p.invalidTrials(), p.singleTrials())
}

func (p *player) requestTrials() []trial {
	const limit, unauthenticated = 262144, http.StatusUnauthorized
	stranger, err := testpki.NewCA("stranger", testpki.Options{})
	p.must(err)
	event := p.changed("a")
	body := list(p.changed("a"))
	shown := func(ca *testpki.CA, opts testpki.Options) request {
		return request{body: body, certificate: p.certificate(ca, p.id, opts)}
	}
	asServer := testpki.Options{Usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	media := func(media string) func(*trial) { return func(t *trial) { t.request.media = media } }
	padded := func(size int) func(*trial) {
		return func(t *trial) { t.request.body += strings.Repeat(" ", size-len(t.request.body)) }
	}

	return []trial{
		good("accepted", "an event", event),
		good("recheck", "an event", event),
		answered("recheck", plain, wrongMedia, "unsupported_media_type", event).with(media(plain)),
		failing("tls", "TLS 1.2", 0, request{body: body, version: tls.VersionTLS12}),
		good("tls", "TLS 1.3", event),
		failing("certificate", "none", unauthenticated, request{body: body, certificate: &tls.Certificate{}}),
		failing("certificate", "an expired one", unauthenticated,
			shown(p.ca, testpki.Options{NotAfter: time.Now().Add(-time.Minute)})),
		failing("certificate", "one for a server", unauthenticated, shown(p.ca, asServer)),
		failing("certificate", "one of another CA", unauthenticated, shown(stranger, testpki.Options{})),
		good("protocol", "a client that speaks both", event),
		good("media-type", "a parameter", event).with(media(contract.V3.ContentType() + "; charset=utf-8")),
		answered("media-type", plain, wrongMedia, "unsupported_media_type", event).with(media(plain)),
		good("unknown-length", "a body of unknown size", event).with(func(t *trial) { t.request.length = -1 }),
		good("size", "the largest body", event).with(padded(limit)),
		answered("size", "a body that is too large", tooLarge, "too_large", event).with(padded(limit + 1)),
		good("elements", "500 elements", slices.Repeat([]string{event}, 500)...),
		answered("elements", "501 elements", malformed, "*", slices.Repeat([]string{event}, 501)...).
			with(func(t *trial) { t.want = append(t.want, tooLarge) }),
		failing("cut-off", "a body that ends early", 5, request{body: body, length: 1 << 16}),
		failing("cut-off", "another one", 5, request{body: body, length: 1 << 16}),
		good("cut-off", "an event after cut-off bodies", event),
		answered("unknown-manager", "no operator", http.StatusNotFound, "unknown_manager", event).
			with(func(t *trial) { t.request.path = contract.V3.Path("unknown-manager") }),
		answered("too-fast", "400 events again", tooFast, "too_fast", slices.Repeat([]string{event}, 400)...).
			with(func(t *trial) { t.most = 100 }),
		answered("claim", "the source of another runtime", http.StatusForbidden, "?*",
			strings.Replace(event, "/runtimes/", "/runtimes/not-", 1)),
	}
}

func (p *player) eventTrials() []trial {
	event := func(more ...string) string { return p.element("changed", "1", more...) }
	with := func(member string) string { return event(strings.Replace(dataOf("a"), "{", "{"+member+",", 1)) }
	resync := p.element("resync", "1")
	long := strings.Repeat("x", 513)
	data := strings.TrimPrefix(dataOf("a"), `"data":`)
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
		good("resync", "one with owner", p.element("resync", "3", p.ownedData())).with(owned),
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

// sequenceTrials returns the trials of numbering. The trials of gap replay the example of the
// section.
func (p *player) sequenceTrials() []trial {
	change := func(sequence int) string {
		return p.numbered("changed", sequence, dataOf(fmt.Sprint("object-", sequence)))
	}
	resyncs := func(n int) func(*trial) { return func(t *trial) { t.resyncs = n } }
	began := p.numbered("resync", 1)
	another := strings.Replace(change(4), "epoch-1-4", "epoch-1-4-1", 1)

	return []trial{
		good("new-epoch", "a new epoch without a resync", change(7)).with(resyncs(1)),
		good("gap", "1", began, change(2)),
		good("gap", "2", change(3), change(4)),
		good("gap", "3", change(3), another, p.beat(1, 4, "")),
		answered("gap", "4", partial, "*",
			p.numbered("changed", 5, dataOf("failing")), change(6)),
		good("gap", "5: nothing is missing", change(7), change(5)).
			with(func(t *trial) { t.resyncs, t.calm = 1, true }),
		good("gap", "6: 8 did not arrive", change(9)).with(resyncs(2)),
		good("ahead", "a resync", began),
		good("ahead", "a heartbeat ahead: 2 to 5 did not arrive", p.beat(1, 5, "")).with(resyncs(2)),
		good("went-back", "events", began, change(2), p.beat(1, 2, "")),
		good("went-back", "a heartbeat that went back", p.beat(2, 1, "")).with(resyncs(2)),
	}
}

func (p *player) invalidTrials() []trial {
	event := p.changed("of-invalid-batch")
	a := p.changed("a")
	raw := func(what, body string) trial {
		return bad("hostile", what).with(func(t *trial) { t.request.body = body })
	}
	return []trial{
		bad("invalid", "an empty batch"),
		bad("invalid", "an epoch that is not UTF-8",
			p.element("changed", "1", "\"epoch\":\"\xff\"", dataOf("x"))),
		bad("invalid", "no kind", event, p.element("changed", "1", `"data":{"watched":{"name":"x"}}`)),
		bad("invalid", "two sources", event, strings.Replace(event, "/runtimes/", "/runtimes/x", 1)),
		bad("invalid", "two epochs", p.numbered("changed", 1, dataOf("x")), event),
		bad("invalid", "an event behind the heartbeat", event, p.element("heartbeat", "1"), event),
		bad("invalid", "two heartbeats", event, p.element("heartbeat", "1"), p.element("heartbeat", "2")),
		bad("invalid", "an unknown type", event, p.element("created", "1", dataOf("x"))),
		bad("invalid", "another source", strings.Replace(event, "/runtimes/", "", 1)),
		bad("invalid", "a negative sequence", event, p.element("resync", "1", `"sequence":"-1"`)),
		bad("invalid", "another specversion", strings.Replace(event, `"1.0"`, `"0.3"`, 1)),
		good("invalid", "a valid batch after all", p.changed("valid")).
			with(func(t *trial) { t.objects = []string{"valid"} }),
		raw("nothing", ""),
		raw("null", "null"),
		raw("an object", "{}"),
		raw("half a list", "["+a),
		raw("text behind", list(a)+"x"),
		raw("deep lists", strings.Repeat("[", 1<<17)),
		raw("deep objects", strings.Repeat(`{"a":`, 1<<15)),
		raw("NUL", "[\x00]"),
		raw("many members", "[{"+strings.Repeat(`"":0,`, 50_000)+`"":0}]`),
		bad("hostile", "a huge number", strings.Replace(a, `"data":{`, `"data":{"generation":1e999999,`, 1)),
		bad("hostile", "a wrong time", p.element("changed", "1", `"time":"yesterday"`, dataOf("a"))),
		good("hostile", "an event after all", a),
	}
}

// owned marks a trial that names an owner.
func owned(t *trial) { t.owned = true }

// ownerOf returns the owner of trials that are owned. The receivers of this program accept any
// owner.
func (p *player) ownerOf() types.NamespacedName {
	if p.owner != (types.NamespacedName{}) {
		return p.owner
	}
	return types.NamespacedName{Namespace: "kcp-system", Name: string(p.id)}
}

func (p *player) ownedData() string {
	o := p.ownerOf()
	return fmt.Sprintf(`"data":{"owner":{"name":%q,"namespace":%q}}`, o.Name, o.Namespace)
}

func (p *player) singleTrials() (all []trial) {
	const (
		event = `"watched":{"Namespace":"default","Name":"demo"},` +
			`"watchedGvk":{"group":"apps","version":"v1","kind":"Deployment"}}`
		resync = `{"watched":{"Namespace":"","Name":"resync"},` +
			`"watchedGvk":{"group":"operator.kyma-project.io","version":"v1beta2","kind":"Watcher"}}`
	)

	on := func(version contract.Version, what string, status int, reason, body, media string) {
		r := request{path: version.Path(p.manager), body: body, media: media}
		all = append(all, answered("single", string(version)+": "+what, status, reason).
			with(func(t *trial) { t.request, t.owned = r, version == contract.V1 && status == http.StatusOK }))
	}

	o := p.ownerOf()
	for version, body := range map[contract.Version]string{
		contract.V1: fmt.Sprintf(`{"owner":{"Namespace":%q,"Name":%q},%s`, o.Namespace, o.Name, event),
		contract.V2: "{" + event,
	} {
		on(version, "an event", http.StatusOK, "", body, plain)
		on(version, "a broken event", malformed, "malformed", body[1:], plain)
		on(version, "another type", wrongMedia, "unsupported_media_type", body, "text/plain")
		on(version, "16385 bytes", tooLarge, "too_large", body+strings.Repeat(" ", 16385-len(body)), plain)
	}

	on(contract.V2, "a resync", http.StatusOK, "", resync, plain)
	return all
}

func list(elements ...string) string { return "[" + strings.Join(elements, ",") + "]" }

func entries(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

func (p *player) element(kind, id string, more ...string) string {
	const attributes = `"specversion":"1.0","type":"com.github.runtime-watcher.%s","source":"/runtimes/%s"`
	head := fmt.Sprintf(attributes, kind, p.id)
	return "{" + strings.Join(append([]string{head, fmt.Sprintf(`"id":%q`, id)}, more...), ",") + "}"
}

func dataOf(name string) string {
	return fmt.Sprintf(`"data":{"watched":{"namespace":"default","name":%q},`, name) +
		`"watchedGvk":{"version":"v1","kind":"ConfigMap"}}`
}

func (p *player) changed(name string) string { return p.element("changed", name, dataOf(name)) }

func (p *player) numbered(kind string, sequence int, more ...string) string {
	number := fmt.Sprintf(`"epoch":"epoch-1","sequence":"%020d"`, sequence)
	return p.element(kind, fmt.Sprint("epoch-1-", sequence), append([]string{number}, more...)...)
}

func (p *player) beat(number, sequence int, more string) string {
	return p.element("heartbeat", fmt.Sprint("beat-", number), `"epoch":"epoch-1"`,
		fmt.Sprintf(`"data":{"number":%d,"intervalMs":30000,"sequence":%d%s}`, number, sequence, more))
}
