package logwriter

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// sink blocks while it is stalled.
type sink struct {
	out   bytes.Buffer
	taken chan struct{} // a token for each line that may be written
}

func (s *sink) Write(line []byte) (int, error) {
	<-s.taken
	return s.out.Write(line)
}

// A stalled sink blocks no line. The lines beyond the bound are dropped, and their number is
// written later.
func TestWriterDropsAndReports(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sink{taken: make(chan struct{})}
		w := New(s)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- w.Start(ctx) }()

		const lines, length = 1000, 1 << 10
		for i := range lines {
			line := fmt.Sprintf("%-*d\n", length-1, i)
			if n, err := w.Write([]byte(line)); n != length || err != nil {
				t.Fatalf("wrote %d, %v", n, err)
			}

			synctest.Wait()
		}

		kept := maxLogBytes/length + 1 // One more is with the sink.
		if got := w.Dropped(); got != int64(lines-kept) {
			t.Errorf("%d lines dropped, want %d", got, lines-kept)
		}

		close(s.taken)
		synctest.Wait()
		text := s.out.String()
		if want := fmt.Sprintf(`stalled","lines":%d}`, lines-kept); strings.Count(text, want) != 1 {
			t.Errorf("no %s in %.2000s", want, text)
		}
		if _, err := w.Write([]byte("last\n")); err != nil {
			t.Error(err)
		}

		stop()
		if err := <-ended; err != nil || !strings.HasSuffix(s.out.String(), "last\n") {
			t.Errorf("%v, and the last line is missing", err)
		}
	})
}

// A stalled sink does not delay the end of the process.
func TestWriterEndsWithAStalledSink(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sink{taken: make(chan struct{})}
		w := New(s)
		ctx, stop := context.WithCancel(t.Context())
		stop()
		_, _ = w.Write([]byte("line\n"))

		began := time.Now()
		if err := w.Start(ctx); err != nil || time.Since(began) != flushTimeout {
			t.Errorf("%v after %v, want the end after %v", err, time.Since(began), flushTimeout)
		}

		close(s.taken) // The test must not leave a goroutine behind.
	})
}
