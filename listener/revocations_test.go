package listener_test

import (
	"context"
	"crypto/elliptic"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/intake"
	"github.com/runtime-watcher/runtime-watcher/listener"
)

// renameInto replaces a file as a kubelet does: no reader sees half of it.
func renameInto(t *testing.T, path, text string) {
	t.Helper()

	next := path + ".next"
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}

// dialled is a client that counts its open connections.
type dialled struct {
	*http.Client

	mu   sync.Mutex
	open int
}

type countedConn struct {
	net.Conn

	of   *dialled
	once sync.Once
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if err != nil {
		c.once.Do(func() {
			c.of.mu.Lock()
			defer c.of.mu.Unlock()
			c.of.open--
		})
	}

	return n, err
}

func dialling(t *testing.T, servers *authority, http2 bool, cert tls.Certificate) *dialled {
	t.Helper()

	d := &dialled{Client: newClient(t, servers, http2, cert)}
	transport, _ := d.Transport.(*http.Transport)
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		d.open++
		return &countedConn{Conn: conn, of: d}, nil
	}

	return d
}

func (d *dialled) connections() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open
}

// within waits until met reports true, at most for a minute.
func within(t *testing.T, met func() bool) {
	t.Helper()

	late := time.After(time.Minute)
	for !met() {
		select {
		case <-late:
			t.Fatal("not met in a minute")
		case <-time.After(time.Millisecond):
		}
	}
}

// cutOff is a runtime whose certificate was stolen, with three replicas of an operator.
type cutOff struct {
	path      string
	urls      []string
	thief     *dialled
	good      *dialled
	underWay  chan struct{}
	thiefCert *leaf
}

const slowBody = `{"watched":{"Namespace":"n","Name":"slow"},"watchedGvk":{"group":"g","version":"v1","kind":"K"}}`

func newCutOff(t *testing.T, http2 bool) *cutOff {
	t.Helper()

	ca := newAuthority(t, "runtimes")
	servers := newAuthority(t, "servers")
	c := &cutOff{
		path: filepath.Join(t.TempDir(), "revoked"), underWay: make(chan struct{}, 1), thiefCert: ca.client(t, "runtime-a"),
	}
	renameInto(t, c.path, "# nothing yet\n")

	handler := core.HandlerFunc(func(ctx context.Context, d core.Delivery) error {
		if d.Event.Watched.Name == "slow" {
			c.underWay <- struct{}{}
			<-ctx.Done()
		}
		return ctx.Err()
	})

	for range 3 {
		file := must(listener.RevocationsFromFile(c.path, intake.RevocationOptions{}))(t)
		run := start(t, listener.FromTLS(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), handler,
			listener.Options{
				TLS:           serverConfig(t, servers, tls.RequireAndVerifyClientCert, ca),
				Revocations:   file,
				HandleTimeout: time.Hour,
			})

		c.urls = append(c.urls, run.url+"/v2/lifecycle/event")
	}

	c.thief = dialling(t, servers, http2, c.thiefCert.pair())
	c.good = dialling(t, servers, http2, ca.client(t, "runtime-a").pair())
	return c
}

// want sends an event of a client to each replica.
func (c *cutOff) want(t *testing.T, client *dialled, status int, reason string) {
	t.Helper()
	for _, url := range c.urls {
		var response *http.Response
		var text string
		within(t, func() bool { // A client may still hold a connection that the server has just closed.
			var err error
			response, text, err = send(t, client.Client, url, bodyV2, nil)
			return err == nil
		})

		if response.StatusCode != status || !strings.Contains(text, reason) {
			t.Errorf("the answer is %d %s, want %d %s", response.StatusCode, text, status, reason)
		}
	}
}

// A stolen certificate is put on the list. Its open connections to three replicas end, also one
// with a request that is under way, and those of the same runtime with a new certificate do not.
func TestRevokedSendersAreCutOff(t *testing.T) {
	t.Parallel()
	for protocol, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()

			c := newCutOff(t, http2)
			c.want(t, c.thief, http.StatusOK, "")
			c.want(t, c.good, http.StatusOK, "")

			ended := make(chan error, 1)
			go func() {
				_, _, err := send(t, c.thief.Client, c.urls[0], slowBody, nil)
				ended <- err
			}()
			<-c.underWay
			before := c.good.connections()

			revoked := time.Now()
			renameInto(t, c.path, "sha256:"+fingerprint(c.thiefCert.TLS.Leaf)+" # the bastion of runtime-a\n")
			within(t, func() bool { return c.thief.connections() == 0 })
			t.Logf("the last connection of the thief ended %v after the revocation", time.Since(revoked))
			if err := <-ended; err == nil {
				t.Error("the request that was under way got an answer")
			}

			c.want(t, c.thief, http.StatusForbidden, `"revoked"`)
			c.want(t, c.good, http.StatusOK, "")
			if now := c.good.connections(); now != before {
				t.Errorf("%d of %d connections with the new certificate are open", now, before)
			}

			renameInto(t, c.path, "name:")
			c.want(t, c.thief, http.StatusForbidden, `"revoked"`)
			renameInto(t, c.path, "")
			within(t, func() bool {
				response, _, err := send(t, c.thief.Client, c.urls[0], bodyV2, nil)
				return err == nil && response.StatusCode == http.StatusOK
			})
		})
	}
}

// A gateway's connection carries other runtimes, and stays. The certificate in its header counts.
func TestRevokedBehindAGateway(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "runtimes")
	stolen := ca.client(t, "runtime-a", dnsNames("a.example.com"))
	good := ca.client(t, "runtime-b", dnsNames("b.example.com"))
	live := intake.NewLiveRevocations(intake.RevocationOptions{})
	var record recorder
	run := start(t, listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{}),
		listener.InsecureAllowAll(), &record, listener.Options{Hooks: record.hooks(), Revocations: live})
	client := newClient(t, nil, false)

	want := func(cert *leaf, status int, reason string) {
		t.Helper()

		response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, http.Header{headerXFCC: {cert.header()}})
		_, answers := record.taken()
		if response.StatusCode != status || response.Close || len(answers) != 1 || answers[0].Reason != reason {
			t.Errorf("the answer is %d, closes %v, %v, want %d %s", response.StatusCode, response.Close, answers, status, reason)
		}
	}

	response, _ := mustSend(t, client, run.url+"/v2/lifecycle/event", bodyV2, http.Header{headerXFCC: {good.header()}})
	record.taken()
	if response.StatusCode != http.StatusServiceUnavailable || run.Ready() == nil {
		t.Errorf("before there is a list: %d, ready: %v", response.StatusCode, run.Ready())
	}

	for _, text := range []string{"sha256:" + fingerprint(stolen.TLS.Leaf), "name:a.example.com", "name:runtime-a"} {
		if err := live.Replace([]byte(text)); err != nil {
			t.Fatal(err)
		}
		want(stolen, http.StatusForbidden, "revoked")
		want(good, http.StatusOK, "")
	}

	if err := run.Ready(); err != nil {
		t.Error(err)
	}
}

// revoking returns a listener behind a gateway that refuses the fingerprint of a certificate.
func revoking(t *testing.T, ca *authority, stolen *x509.Certificate, opts listener.Options) *listener.Listener {
	t.Helper()

	live := intake.NewLiveRevocations(intake.RevocationOptions{})
	if err := live.Replace([]byte("sha256:" + fingerprint(stolen))); err != nil {
		t.Fatal(err)
	}

	opts.Revocations = live
	return newListener(t, listener.FromXFCC(listener.InsecureAnyProxy(), ca.roots(), listener.PeerOptions{}),
		listener.InsecureAllowAll(), &recorder{}, opts)
}

// The thief has the name of the runtime, and none of its share: it is charged as a stranger. Paths
// and methods show it nothing.
func TestARevokedSenderCostsNothing(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "runtimes")
	stolen := ca.client(t, "runtime-a")
	good := ca.client(t, "runtime-a")
	l := revoking(t, ca, stolen.TLS.Leaf, listener.Options{RuntimeRate: 0.001, RuntimeBurst: 10})
	ask := func(cert *leaf, method, path string) int {
		r := post(path, bodyV2)
		r.Method = method
		r.Header.Set(headerXFCC, cert.header())
		w := httptest.NewRecorder()
		l.ServeHTTP(w, r)
		return w.Code
	}

	codes := map[int]int{}
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		for _, path := range []string{"/v2/lifecycle/event", "/v2/nobody/event", "/", "/v3/lifecycle/events"} {
			codes[ask(stolen, method, path)]++
		}
	}

	if codes[http.StatusForbidden] != 8 {
		t.Errorf("answers %v, want 403 alone", codes)
	}

	for range 5 {
		ask(stolen, http.MethodPost, "/v2/lifecycle/event")
	}

	if code := ask(stolen, http.MethodPost, "/v2/lifecycle/event"); code == http.StatusForbidden {
		t.Error("a thief without limit is answered")
	}
	if code := ask(good, http.MethodPost, "/v2/lifecycle/event"); code != http.StatusOK {
		t.Errorf("the runtime with its new certificate gets %d", code)
	}
}

// The holder of a certificate can give it another fingerprint without its CA. Each form has the
// key, the names and a valid signature of the stolen certificate.
func TestEachFormOfARevokedCertificateIsRevoked(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "runtimes")
	stolen := ca.client(t, "runtime-a")
	good := ca.client(t, "runtime-a")
	l := revoking(t, ca, stolen.TLS.Leaf, listener.Options{})
	ask := func(cert *x509.Certificate) int {
		r := post("/v2/lifecycle/event", bodyV2)
		r.Header.Set(headerXFCC, `Cert="`+escapedPEM(cert)+`"`)
		return serve(l, r).Code
	}

	if code := ask(good.TLS.Leaf); code != http.StatusOK {
		t.Fatalf("another certificate of the runtime gets %d", code)
	}

	for what, form := range map[string]func(signature []byte) asn1.BitString{
		"as issued":           whole,
		"the other s":         func(s []byte) asn1.BitString { return whole(otherS(t, s)) },
		"padded":              padded,
		"the other s, padded": func(s []byte) asn1.BitString { return padded(otherS(t, s)) },
	} {
		cert := reform(t, stolen.TLS.Leaf, form)
		if what != "as issued" && fingerprint(cert) == fingerprint(stolen.TLS.Leaf) {
			t.Errorf("%s: the form has the fingerprint of the issued one, and shows nothing", what)
		}
		if err := cert.CheckSignatureFrom(ca.Certificate); err != nil {
			t.Errorf("%s: the form is not valid, and shows nothing: %v", what, err)
		}

		if code := ask(cert); code != http.StatusForbidden {
			t.Errorf("%s: the thief gets %d, want 403", what, code)
		}
	}
}

// An operator may list the form that the holder has presented, such as from the log of a gateway.
// The holder then presents another one.
func TestAnEntryOfAnyFormRevokesEachForm(t *testing.T) {
	t.Parallel()

	ca := newAuthority(t, "runtimes")
	stolen := ca.client(t, "runtime-a")
	forms := map[string]func(signature []byte) asn1.BitString{
		"as issued":                 whole,
		"the other s":               func(s []byte) asn1.BitString { return whole(otherS(t, s)) },
		"padded":                    padded,
		"padded twice":              func(s []byte) asn1.BitString { return padding(s, 2) },
		"the other s, padded twice": func(s []byte) asn1.BitString { return padding(otherS(t, s), 2) },
	}

	for listed, form := range forms {
		l := revoking(t, ca, reform(t, stolen.TLS.Leaf, form), listener.Options{})
		for presented, form := range forms {
			cert := reform(t, stolen.TLS.Leaf, form)
			r := post("/v2/lifecycle/event", bodyV2)
			r.Header.Set(headerXFCC, `Cert="`+escapedPEM(cert)+`"`)
			if code := serve(l, r).Code; code != http.StatusForbidden {
				t.Errorf("with the entry %q, the form %q gets %d, want 403", listed, presented, code)
			}
		}
	}
}

// reform returns a certificate with another form of its signature.
func reform(t *testing.T, cert *x509.Certificate, form func(signature []byte) asn1.BitString) *x509.Certificate {
	t.Helper()

	var outer struct {
		TBS, Algorithm asn1.RawValue
		Signature      asn1.BitString
	}
	if _, err := asn1.Unmarshal(cert.Raw, &outer); err != nil {
		t.Fatal(err)
	}

	outer.Signature = form(outer.Signature.Bytes)
	return must(x509.ParseCertificate(must(asn1.Marshal(outer))(t)))(t)
}

// otherS returns the ECDSA signature with n-s, for P-256.
func otherS(t *testing.T, signature []byte) []byte {
	t.Helper()

	var form struct{ R, S *big.Int }
	if _, err := asn1.Unmarshal(signature, &form); err != nil {
		t.Fatal(err)
	}
	form.S.Sub(elliptic.P256().Params().N, form.S)
	return must(asn1.Marshal(form))(t)
}

// whole returns the signature as a CA issues it.
func whole(signature []byte) asn1.BitString {
	return asn1.BitString{Bytes: signature, BitLength: 8 * len(signature)}
}

// padded returns the signature with one bit of padding.
func padded(signature []byte) asn1.BitString { return padding(signature, 1) }

// padding returns the signature with bits of padding. The first two bits of a DER sequence are 0.
func padding(signature []byte, bits int) asn1.BitString {
	shifted := new(big.Int).Lsh(new(big.Int).SetBytes(signature), uint(bits))
	return asn1.BitString{Bytes: shifted.FillBytes(make([]byte, len(signature))), BitLength: 8*len(signature) - bits}
}

// A changed file takes effect, and a broken or missing one leaves the last good list in use.
func TestRevocationsFromFile(t *testing.T) {
	t.Parallel()

	path := filepath.Join(t.TempDir(), "revoked")
	if _, err := listener.RevocationsFromFile(path, intake.RevocationOptions{}); err == nil {
		t.Error("a missing file is taken for an empty list")
	}

	renameInto(t, path, "runtime-a\n")
	if _, err := listener.RevocationsFromFile(path, intake.RevocationOptions{}); err == nil || !strings.Contains(err.Error(), "line 1") ||
		!strings.Contains(err.Error(), path) {
		t.Errorf("error %v, want one with the file and the line", err)
	}

	renameInto(t, path, "name:runtime-a\n")
	file := must(listener.RevocationsFromFile(path, intake.RevocationOptions{}))(t)
	a := core.Peer{ID: runtimeA}
	b := core.Peer{ID: runtimeB}
	want := func(revokesA, revokesB bool) {
		t.Helper()

		file.RefreshRevocations()
		list := file.RevocationList()
		if list.Revokes(a) != revokesA || list.Revokes(b) != revokesB {
			t.Errorf("a is revoked: %v, b: %v, want %v, %v", list.Revokes(a), list.Revokes(b), revokesA, revokesB)
		}
	}

	want(true, false)
	renameInto(t, path, "name:runtime-b\n")
	want(false, true)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}

	want(false, true)
	renameInto(t, path, "nonsense\n")
	want(false, true)

	renameInto(t, path, "name:runtime-b\n")
	want(false, true)
	renameInto(t, path, "")
	want(false, false)
}
