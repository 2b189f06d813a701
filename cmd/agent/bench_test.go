package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
)

// BenchmarkProcess is a real agent that 16 writers keep busy with distinct objects. Beside the time
// per review it reports the resident memory of the process at its peak. GOMEMLIMIT is passed on.
func BenchmarkProcess(b *testing.B) {
	path := binary(b)
	for _, size := range []int{2_000, 100_000, 1_000_000} {
		for name, status := range map[string]int{"up": http.StatusOK, "down": http.StatusServiceUnavailable} {
			b.Run(fmt.Sprintf("object=%dkB/%s", size/1000, name), func(b *testing.B) { benchmarkProcess(b, path, size, status) })
		}
	}
}

func benchmarkProcess(b *testing.B, path string, size, status int) {
	b.Helper()

	p := newPKI(b)
	kcp := newControlPlane(b, p, status)
	kcp.received = nil // It is not read.
	agent := startProcess(b.Context(), b, path,
		env(p, kcp, "SETTLE=100ms", "SHUTDOWN_TIMEOUT=1s", "GOMEMLIMIT="+os.Getenv("GOMEMLIMIT"))...)
	webhook, _ := agent.log.addresses(b)
	client := p.apiServer(b)
	client.Transport.(*http.Transport).MaxIdleConnsPerHost = writers
	template := strings.Replace(reviewBody("NAME", false), `"a":"b"`, `"a":"`+strings.Repeat("x", size)+`"`, 1)
	var serial atomic.Int64
	b.SetParallelism(max(writers/runtime.GOMAXPROCS(0), 1))
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			name := strconv.FormatInt(serial.Add(1), 10)
			body := strings.NewReader(strings.Replace(template, `"NAME"`, strconv.Quote(name), 2))
			response, err := client.Post("https://"+webhook+"/validate/widgets", "application/json", body)
			if err != nil {
				b.Error(err)
				return
			}

			if _, err := io.Copy(io.Discard, response.Body); err != nil {
				b.Error(err)
			}

			_ = response.Body.Close() // It was read.
		}
	})

	b.StopTimer()
	b.ReportMetric(residentPeak(b, agent.Process.Pid), "MiB-peak")
	client.CloseIdleConnections()
	noError(b, agent.Process.Kill())
	_ = agent.Wait() // It was killed.
}

// writers write at once.
const writers = 16

func residentPeak(b testing.TB, pid int) float64 {
	b.Helper()

	text := must(os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status"))(b)
	match := regexp.MustCompile(`VmHWM:\s+(\d+) kB`).FindSubmatch(text)
	if match == nil {
		b.Fatalf("no VmHWM in %s", text)
	}

	return must(strconv.ParseFloat(string(match[1]), 64))(b) / 1024
}
