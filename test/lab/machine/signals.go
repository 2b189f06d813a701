package machine

import (
	"context"
	"errors"
	"flag"
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

// The exit codes of programs, after success 0.
const (
	ExitFailure     = 1
	ExitUsage       = 2
	ExitInterrupted = 130 // As in a shell: 128 + SIGINT.
)

var (
	// ErrUsage means that the flags are wrong.
	ErrUsage = errors.New("wrong settings (see --help)")
	// ErrInterrupted means that a signal ended the program before its last step.
	ErrInterrupted = errors.New("interrupted; all its processes have ended, and its files are removed")
)

// ExitCode returns the exit code of a program with an error.
func ExitCode(err error) int {
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, ErrUsage):
		return ExitUsage
	case errors.Is(err, ErrInterrupted):
		return ExitInterrupted
	default:
		return ExitFailure
	}
}
