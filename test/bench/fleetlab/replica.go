package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// replica is a process of the operator.
type replica struct {
	address string
	stdin   io.Closer
	cmd     *exec.Cmd
	began   instant
	last    atomic.Pointer[status]
	lines   atomic.Int64
	done    chan struct{}
}

// startReplica runs this program as an operator. Its log goes to a file.
func startReplica(config operatorConfig, log io.Writer, reconciled func(look)) (*replica, error) {
	settings, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	r := &replica{address: config.Address, began: now(), done: make(chan struct{})}
	r.last.Store(&status{})
	r.cmd = exec.Command(os.Args[0])
	r.cmd.Env = append(os.Environ(), operatorVariable+"="+string(settings))
	if config.Variant.GOGC != "" {
		r.cmd.Env = append(r.cmd.Env, "GOGC="+config.Variant.GOGC)
	}
	if err := r.start(log, reconciled); err != nil {
		return nil, err
	}
	return r, nil
}

func (r *replica) start(log io.Writer, reconciled func(look)) error {
	looks, looksEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	reports, reportsEnd, err := os.Pipe()
	if err != nil {
		return err
	}
	r.cmd.ExtraFiles = []*os.File{looksEnd, reportsEnd}
	r.cmd.Stderr = &lineWriter{to: log, lines: &r.lines}
	if r.stdin, err = r.cmd.StdinPipe(); err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	_, _ = looksEnd.Close(), reportsEnd.Close()
	var readers sync.WaitGroup
	readers.Go(func() { readLooks(bufio.NewReaderSize(looks, 1<<16), reconciled) })
	readers.Go(func() { r.readReports(reports) })
	go func() {
		readers.Wait()
		_ = r.cmd.Wait() // It was killed, or its log has the cause.
		_, _ = looks.Close(), reports.Close()
		close(r.done)
	}()
	return nil
}

func (r *replica) readReports(from io.Reader) {
	for decoder := json.NewDecoder(from); ; {
		var s status
		if decoder.Decode(&s) != nil {
			return
		}
		r.last.Store(&s)
	}
}

// kill ends the process with SIGKILL.
func (r *replica) kill() {
	_ = r.cmd.Process.Kill() // It may have ended.
	<-r.done
}

// hasEnded reports whether the process has ended.
func (r *replica) hasEnded() bool { return isClosed(r.done) }

// profile makes the process write profiles.
func (r *replica) profile() error { return r.cmd.Process.Signal(syscall.SIGUSR1) }

// usage has the processor time and the memory of a process, from proc(5).
type usage struct {
	processor time.Duration
	// resident is in bytes.
	resident int64
}

func (r *replica) usage() (usage, error) { return usageOf(r.cmd.Process.Pid) }

func usageOf(pid int) (u usage, err error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return u, err
	}
	// The name of the program, in parentheses, may have spaces.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system, resident = 11, 12, 21
	ticks, pages := int64(0), int64(0)
	for i, to := range map[int]*int64{user: &ticks, system: &ticks, resident: &pages} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return u, fmt.Errorf("field %d of the status of a process: %w", i, err)
		}
		*to += n
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on all architectures that Go has.
	return usage{time.Duration(ticks) * tick, pages * int64(os.Getpagesize())}, nil
}

// lineWriter counts lines.
type lineWriter struct {
	to    io.Writer
	lines *atomic.Int64
}

// Write passes the text on.
func (w *lineWriter) Write(text []byte) (int, error) {
	w.lines.Add(int64(bytes.Count(text, []byte("\n"))))
	return w.to.Write(text)
}
