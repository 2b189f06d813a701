package fleet_test

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/fleet"
)

// TestDocumentedNumbers replays the epoch that docs/reference/contract-v3.md shows request by
// request.
func TestDocumentedNumbers(t *testing.T) {
	rows := documentedRequests(t)
	inBubble(t, fleet.Options{}, func(r *rig) {
		for _, row := range rows {
			r.causes = nil
			r.fleet.Receiver().Observe(core.Peer{ID: prod}, kyma, row.batch, row.refused)
			time.Sleep(5 * time.Second) // More than the jitter of resyncs.
			synctest.Wait()
			if diff := cmp.Diff(row.causes, r.causes); diff != "" {
				t.Errorf("%s: causes of resyncs (-document +fleet):\n%s", row.text, diff)
			}
		}
	})
}

type documentedRequest struct {
	text    string
	batch   core.Batch
	refused core.EventErrors
	causes  []string
}

func documentedRequests(t *testing.T) (rows []documentedRequest) {
	t.Helper()

	text, err := os.ReadFile("../../docs/reference/contract-v3.md")
	if err != nil {
		t.Fatal(err)
	}

	for _, line := range regexp.MustCompile(`(?m)^\| \d+ \| .*$`).FindAllString(string(text), -1) {
		rows = append(rows, documentedRow(t, line))
	}

	if len(rows) == 0 {
		t.Fatal("docs/reference/contract-v3.md shows no requests of an epoch")
	}
	return rows
}

func documentedRow(t *testing.T, line string) documentedRequest {
	t.Helper()

	cells := strings.Split(line, "|")
	elements := cells[2]
	answer := cells[3]
	receiver := cells[4]
	row := documentedRequest{text: line, batch: core.Batch{Source: prod, Epoch: "e"}, refused: core.EventErrors{}}

	for _, event := range regexp.MustCompile(`(resync|changed) (\d+)`).FindAllStringSubmatch(elements, -1) {
		row.batch.Events = append(row.batch.Events, core.Numbered{
			Sequence: documentedNumber(t, event[2]), WatchEvent: core.WatchEvent{Resync: event[1] == "resync"},
		})
	}

	if beat := regexp.MustCompile(`heartbeat with sequence (\d+)`).FindStringSubmatch(elements); beat != nil {
		row.batch.Heartbeat = &core.Heartbeat{Number: 1, Interval: interval, Sequence: documentedNumber(t, beat[1])}
	}
	if index := regexp.MustCompile(`index (\d+) refused`).FindStringSubmatch(answer); index != nil {
		row.refused[int(documentedNumber(t, index[1]))] = errors.New("refused")
	}
	if cause := regexp.MustCompile("`(\\w+)`").FindStringSubmatch(receiver); cause != nil {
		row.causes = []string{cause[1]}
	}
	return row
}

func documentedNumber(t *testing.T, text string) uint64 {
	t.Helper()

	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
