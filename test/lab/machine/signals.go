package machine

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// UntilInterrupted returns a context that ends with Ctrl-C, SIGTERM, a closed terminal, or a failed
// write to the returned writer, as after the end of a pipe. Call it in main.
func UntilInterrupted(out io.Writer) (ctx context.Context, until io.Writer, stop context.CancelFunc) {
	// Notify for SIGPIPE would also report each broken connection.
	signal.Ignore(syscall.SIGPIPE)
	ctx, restore := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	ctx, cancel := context.WithCancel(ctx)
	return ctx, &untilClosed{out, cancel}, func() { cancel(); restore() }
}

type untilClosed struct {
	io.Writer
	closed func()
}

// Write implements [io.Writer].
func (u *untilClosed) Write(text []byte) (int, error) {
	n, err := u.Writer.Write(text)
	if err != nil {
		u.closed()
	}
	return n, err
}
