package lab

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// forwarder copies the bytes of connections to where dial leads, in both directions.
type forwarder struct {
	dial func(ctx context.Context) (net.Conn, error)
	work sync.WaitGroup
}

// serve accepts connections until the socket is closed.
func (f *forwarder) serve(ctx context.Context, socket net.Listener) {
	for {
		inside, err := socket.Accept()
		if err != nil {
			return
		}
		f.work.Go(func() {
			if outside, err := f.dial(ctx); err == nil {
				carry(ctx, inside, outside)
			}
			_ = inside.Close()
		})
	}
}

// carry copies until one end closes, or ctx ends.
func carry(ctx context.Context, a, b net.Conn) {
	stop := context.AfterFunc(ctx, func() { _, _ = a.Close(), b.Close() })
	defer stop()
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // Any end is one.
		_, _ = to.Close(), from.Close()
	}
	both.Go(func() { copyTo(a, b) })
	both.Go(func() { copyTo(b, a) })
	both.Wait()
}

// tunnel leads an API server into the network of the pods, as konnectivity does. The API server
// sends CONNECT with the address of a Service.
func tunnel(ctx context.Context, dial func(service string) (net.Conn, error)) *http.Server {
	connect := func(w http.ResponseWriter, r *http.Request) {
		inside, err := dial(r.Host)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		outside, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			_ = inside.Close()
			return
		}
		_, _ = io.WriteString(outside, "HTTP/1.1 200 OK\r\n\r\n") // Else carry ends at once.
		carry(ctx, inside, outside)
	}
	return &http.Server{Handler: http.HandlerFunc(connect), ReadHeaderTimeout: time.Minute}
}

// freeAddress returns an address on which nothing listens.
func freeAddress(ctx context.Context) (string, error) {
	socket, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return socket.Addr().String(), socket.Close()
}
