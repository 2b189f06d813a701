package listener_test

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runtime-watcher/runtime-watcher/listener"
)

// network is a [net.Listener] in memory. Its clients choose their addresses.
type network struct {
	incoming chan net.Conn
	closed   chan struct{}
	once     sync.Once
}

func (n *network) Accept() (net.Conn, error) {
	select {
	case conn := <-n.incoming:
		return conn, nil
	case <-n.closed:
		return nil, net.ErrClosed
	}
}

func (n *network) Close() error {
	n.once.Do(func() { close(n.closed) })
	return nil
}

func (n *network) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 443} }

// dial connects from an address.
func (n *network) dial(t *testing.T, address string) net.Conn {
	t.Helper()
	near, far := net.Pipe()
	t.Cleanup(func() { near.Close() })
	n.incoming <- &addressed{far, &net.TCPAddr{IP: net.ParseIP(address), Port: 1}}
	return near
}

type addressed struct {
	net.Conn

	remote net.Addr
}

func (a *addressed) RemoteAddr() net.Addr { return a.remote }

// work counts how many do something at once, and the most that did.
type work struct {
	mu           sync.Mutex
	inside, most int
}

// do takes a time of the bubble.
func (w *work) do(took time.Duration) {
	w.mu.Lock()
	w.inside++
	w.most = max(w.most, w.inside)
	w.mu.Unlock()
	time.Sleep(took)
	w.mu.Lock()
	w.inside--
	w.mu.Unlock()
}

// begin sends the first message of a handshake and leaves it at that.
func begin(t *testing.T, conn net.Conn) {
	t.Helper()
	go func() {
		client := tls.Client(conn, &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
		_ = client.HandshakeContext(t.Context()) // Without a certificate it fails, or later.
	}()
}

// However many handshakes begin, few compute at once, and a runtime of another address hardly
// waits.
func TestHandshakesAreFair(t *testing.T) {
	t.Parallel()
	const (
		silent, flood = 100, 300
		took          = 10 * time.Millisecond
		slots         = 2
	)
	synctest.Test(t, func(t *testing.T) {
		n := &network{incoming: make(chan net.Conn), closed: make(chan struct{})}
		ca, handshakes := newAuthority(t, "ca"), new(work)
		config := serverConfig(t, ca, tls.RequireAndVerifyClientCert, ca)
		config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
			handshakes.do(took)
			return nil, nil
		}
		untilTheEnd(t, newListener(t, listener.FromTLSWithRoots(ca.roots(), listener.PeerOptions{}), listener.InsecureAllowAll(), &recorder{},
			listener.Options{Listener: n, TLS: config, MaxHandshakes: slots}))
		for range silent {
			n.dial(t, "10.0.0.1")
		}
		for range flood {
			begin(t, n.dial(t, "10.0.0.1"))
		}
		synctest.Wait()
		// HTTP/1.1, because both ends of HTTP/2 begin with a write, and pipes have no buffer.
		client := newClient(t, ca, false, ca.client(t, string(runtimeA)).pair())
		transport, _ := client.Transport.(*http.Transport)
		transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
			return n.dial(t, "10.0.0.2"), nil
		}
		began := time.Now()
		response, _ := mustSend(t, client, "https://127.0.0.1/v2/lifecycle/event", bodyV2, nil)
		waited := time.Since(began)
		transport.CloseIdleConnections()
		// It waits before each of its messages. All handshakes together take 1.5 s.
		if response.StatusCode != http.StatusOK || waited > 10*took {
			t.Errorf("a runtime of another address is answered %d after %v, want 200 within %v",
				response.StatusCode, waited, 10*took)
		}
		handshakes.mu.Lock()
		defer handshakes.mu.Unlock()
		if handshakes.most != slots {
			t.Errorf("%d handshakes at once, want %d", handshakes.most, slots)
		}
	})
}
