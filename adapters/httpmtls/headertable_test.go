package httpmtls_test

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"testing"

	"github.com/runtime-watcher/runtime-watcher/adapters/httpmtls"
	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/keys"
)

// A server remembers no header of the requests (RFC 7541, section 6.3): the first block begins with
// an update of the table to 1 byte.
func TestRequestsNeedNoHeaderTable(t *testing.T) {
	t.Parallel()
	ends := newPKI(t)
	socket := must(net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}))
	defer socket.Close()
	forwarder := newForwarder(t, ends.client, socket.Addr().String(), httpmtls.Options{Retries: -1})
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- forwarder.Forward(ctx, manager, core.NewBatch(event("a"))) }()
	conn := tls.Server(must(socket.Accept()), keys.ServerTLSConfig(ends.server))
	defer conn.Close()
	const sizeUpdate = 0x20 | 1
	if block := must(headerBlock(conn)); block[0] != sizeUpdate {
		t.Errorf("the header block begins with %#x, want %#x", block[0], sizeUpdate)
	}
	stop()
	if err := <-ended; err == nil {
		t.Error("a request without an answer succeeded")
	}
}

// headerBlock returns the payload of the first frame with headers (RFC 9113, sections 3.4 and 6.2).
func headerBlock(from io.Reader) ([]byte, error) {
	const preface, headersType = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 1
	if _, err := io.ReadFull(from, make([]byte, len(preface))); err != nil {
		return nil, err
	}
	for {
		var head [9]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return nil, err
		}
		payload := make([]byte, binary.BigEndian.Uint32(append([]byte{0}, head[:3]...)))
		if _, err := io.ReadFull(from, payload); err != nil || head[3] == headersType {
			return payload, err
		}
	}
}
