package main

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
)

// binary builds the agent as `make build` does, with more environment for the Go command.
func binary(tb testing.TB, env ...string) string {
	tb.Helper()

	path := filepath.Join(tb.TempDir(), "agent")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-trimpath", "-buildvcs=false",
		"-ldflags", "-s -w -X main.version=v1.2.3", "-o", path, ".")
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}

	return path
}

// process is an agent in a process of its own.
type process struct {
	*exec.Cmd

	log *logBook
}

// patient returns a context that ends before a test that hangs.
func patient(t *testing.T) context.Context {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	t.Cleanup(cancel)
	return ctx
}

// startProcess starts an agent. The end of ctx kills it.
func startProcess(ctx context.Context, tb testing.TB, path string, env ...string) process {
	tb.Helper()

	p := process{exec.CommandContext(ctx, path), newLogBook()}
	p.Env = env
	p.Stderr = p.log
	noError(tb, p.Start())

	return p
}

func TestProcess(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a binary")
	}

	path := binary(t)
	t.Run("stops on SIGTERM, with today's settings only", func(t *testing.T) {
		p, kcp := newPlane(t)
		ca, cert, key := p.volume.Paths()
		agent := startProcess(patient(t), t, path,
			"WEBHOOK_PORT=0", "METRICS_PORT=0", "CA_CERT="+ca, "TLS_CERT="+cert, "TLS_KEY="+key,
			"KCP_ADDR="+kcp.address())

		serves(t, p, kcp, agent)
	})

	t.Run("outlives the reader of its log", func(t *testing.T) {
		p, kcp := newPlane(t)
		reader, writer, err := os.Pipe()
		noError(t, err)
		agent := process{exec.CommandContext(patient(t), path), newLogBook()}
		agent.Env = env(p, kcp, "LOG_LEVEL=debug")
		agent.Stderr = writer
		noError(t, errors.Join(agent.Start(), writer.Close()))
		go func() { _, _ = io.Copy(agent.log, reader) }()
		agent.log.addresses(t)
		_ = reader.Close() // Each line of the log fails from now on.
		serves(t, p, kcp, agent)
	})

	t.Run("answers while others learn that it stops, and a second signal ends it at once", func(t *testing.T) {
		p, kcp := newPlane(t)
		agent := startProcess(patient(t), t, path, env(p, kcp, "STOP_DELAY=1h")...)
		webhook, metrics := agent.log.addresses(t)
		noError(t, agent.Process.Signal(syscall.SIGTERM))
		agent.log.wait(t, "agent stops", 1)
		client := p.apiServer(t)

		for path, want := range map[string]int{"/readyz": http.StatusServiceUnavailable, "/healthz": http.StatusOK} {
			if status, body := do(t, client, http.MethodGet, "http://"+metrics+path, ""); status != want {
				t.Errorf("%s is %d %s, want %d", path, status, body, want)
			}
		}

		review(t, client, webhook, "demo", false)
		kcp.next(t)
		noError(t, agent.Process.Signal(syscall.SIGTERM))
		if err := agent.Wait(); err == nil || err.Error() != "exit status 1" {
			t.Errorf("ended with %v, want exit status 1", err)
		}
	})

	t.Run("version", func(t *testing.T) {
		out, err := exec.CommandContext(t.Context(), path, "--version").Output()
		if want := "agent v1.2.3 " + runtime.Version(); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("printed %q, %v, want %s", out, err, want)
		}
	})

	t.Run("wrong settings", func(t *testing.T) {
		for arg, want := range map[string]string{
			"--what": "KCP_ADDR", "---x": "KCP_ADDR", "--": "KCP_ADDR", "--=1": "KCP_ADDR", "-": "KCP_ADDR",
			"stray": `"stray": unknown command`,
		} {
			var stderr bytes.Buffer
			cmd := exec.CommandContext(patient(t), path, arg)
			cmd.Stderr = &stderr
			cmd.Env = []string{}
			var exit *exec.ExitError

			if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(stderr.String(), want) {
				t.Errorf("%s: ended with %v, want exit code 2 and %s in:\n%s", arg, err, want, &stderr)
			}
		}
	})

	t.Run("static", func(t *testing.T) {
		if runtime.GOOS != "linux" {
			t.Skip("linux only")
		}

		file := must(elf.Open(path))(t)
		defer file.Close()
		for _, program := range file.Progs {
			if program.Type == elf.PT_INTERP || program.Type == elf.PT_DYNAMIC {
				t.Errorf("the binary has a %v segment: it is not static", program.Type)
			}
		}
	})
}

// serves sends one review through an agent, waits for its event, and stops the agent gracefully.
func serves(t *testing.T, p pki, kcp *controlPlane, agent process) {
	t.Helper()

	webhook, _ := agent.log.addresses(t)
	client := p.apiServer(t)
	if got := review(t, client, webhook, "demo", false); !strings.HasPrefix(got, "accepted") {
		t.Errorf("decision %q, want accepted", got)
	}
	if got := kcp.next(t).path; got != "/v3/widgets/events" {
		t.Errorf("event came to %s, want /v3/widgets/events", got)
	}

	client.CloseIdleConnections()
	noError(t, agent.Process.Signal(syscall.SIGTERM))
	if err := agent.Wait(); err != nil {
		t.Errorf("ended with %v, want exit code 0", err)
	}
}

func TestFIPS(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the cryptography of the standard library anew")
	}

	path := binary(t, "GOFIPS140=v1.0.0")
	p, kcp := newPlane(t)
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	if err != nil || !strings.HasSuffix(strings.TrimSpace(string(out)), "fips140=v1.0.0") {
		t.Errorf("printed %q, %v, want fips140=v1.0.0", out, err)
	}

	serves(t, p, kcp, startProcess(patient(t), t, path, env(p, kcp, "GODEBUG=fips140=only")...))
}

// The collector works harder from half of the memory on that the container can spare.
func TestSoftMemoryLimitFollowsTheContainer(t *testing.T) {
	t.Parallel()

	const v1, v2 = "memory/memory.limit_in_bytes", "memory.max"
	for name, test := range map[string]struct {
		file, text string
		want       int64
	}{
		"no cgroup":              {"other", "", 22 << 20},
		"no limit":               {v2, "max\n", 22 << 20},
		"no limit, v1":           {v1, "9223372036854771712\n", 22 << 20},
		"the manifest":           {v2, "67108864\n", 22 << 20},
		"less":                   {v2, "33554432\n", 22 << 20},
		"for 100,000 objects":    {v2, "268435456\n", 118 << 20},
		"for many objects in v1": {v1, "209715200\n", 90 << 20},
	} {
		root := fstest.MapFS{test.file: {Data: []byte(test.text)}}
		if got := softMemoryLimit(root); got != test.want {
			t.Errorf("%s: soft limit %d, want %d", name, got, test.want)
		}
	}
}

// The log names the memory before the container ends the agent for it, once in ten minutes.
func TestMemoryNearTheLimitIsLogged(t *testing.T) {
	t.Parallel()

	for name, test := range map[string]struct {
		limit, resident int64
		want            int
	}{
		"below":    {64 << 20, 54 << 20, 0},
		"near":     {64 << 20, 55 << 20, 3},
		"no limit": {0, 1 << 40, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var log strings.Builder
				ctx, stop := context.WithTimeout(t.Context(), 25*time.Minute)
				defer stop()
				warnOfMemory(ctx, slog.New(slog.NewJSONHandler(&log, nil)), test.limit, func() int64 { return test.resident })
				line := `"msg":"memory is near the limit of the container","resident_mib":55,"limit_mib":64`
				if lines := strings.Count(log.String(), "\n"); lines != test.want || strings.Count(log.String(), line) != lines {
					t.Errorf("log:\n%s\nwant %d lines with %s", log.String(), test.want, line)
				}
			})
		})
	}

	if runtime.GOOS == "linux" && residentMemory() < 1<<20 {
		t.Errorf("resident memory of this process: %d bytes", residentMemory())
	}
}
