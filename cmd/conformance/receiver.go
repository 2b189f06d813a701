package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/coretest"
	"github.com/runtime-watcher/runtime-watcher/internal/conformance"
	"github.com/runtime-watcher/runtime-watcher/keys/testpki"
)

func judgeReceiver(ctx context.Context, s settings, to *report) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	operator := &coretest.Recorder{}
	if s.given == nil {
		if err := s.startReceiver(ctx, operator); err != nil {
			return err
		}
	}

	for _, of := range to.Results {
		to.run(ctx, of, func(v *verdict) {
			p := &player{settings: s, verdict: v, id: core.RuntimeID("judge-" + of.rule.ID)}
			if s.given != nil {
				p.id = core.RuntimeID(s.given.Certificate.Leaf.Subject.CommonName)
			}
			if s.script {
				p.operator = operator
			}

			p.check(of.rule)
		})
	}

	return nil
}

func (s *settings) startReceiver(ctx context.Context, operator *coretest.Recorder) error {
	if s.address == "" {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}

		s.address = l.Addr().String()
		_ = l.Close()
	}

	leaf, err := s.ca.Server("receiver", testpki.Options{})
	if err != nil {
		return err
	}

	receiver, err := s.start(ctx, leaf, func(line []byte) { record(operator, line) })
	if err != nil {
		return err
	}

	return s.await(ctx, receiver.ended)
}

func (s *settings) await(ctx context.Context, ended <-chan struct{}) error {
	const pause = 50 * time.Millisecond
	for late := time.After(s.patience); ; {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", s.address)
		if err == nil {
			return conn.Close()
		}

		select {
		case <-late:
			return fmt.Errorf("no receiver at %s: %w", s.address, err)
		case <-ended:
			return errors.New("the receiver ended before it served")
		case <-time.After(pause):
		}
	}
}

func record(operator *coretest.Recorder, line []byte) {
	var d struct{ Event, Runtime, Manager, Namespace, Name string }
	if json.Unmarshal(line, &d) != nil || d.Event == "" { //nolint:musttag // Names also match in lower case.
		return
	}

	_ = operator.Handle(context.Background(), core.Delivery{
		Runtime: core.RuntimeID(d.Runtime), Manager: core.Manager(d.Manager),
		Event: core.WatchEvent{
			Resync: d.Event == "resync", Watched: types.NamespacedName{Namespace: d.Namespace, Name: d.Name},
		},
	})
}

func (p *player) check(rule conformance.Rule) {
	if rule.Needs == conformance.Script && !p.script {
		p.skip("needs a receiver that follows the script, and prints its deliveries")
	}

	for _, t := range p.trials() {
		if t.rule == rule.ID && !p.lacksOwner(&t) {
			p.try(&t)
		}
	}

	remote := coretest.RemoteReceiver{Sender: p.forwarder, Operator: p.operator}
	opts := coretest.ReceiverOptions{Patience: p.patience}
	coretest.CheckReceiver(remote, opts, func(of string, check func(coretest.T)) {
		if of == rule.ID {
			check(p)
		}
	})
}

// lacksOwner reports whether a trial names an owner that a receiver with a verifier would refuse.
func (p *player) lacksOwner(t *trial) bool {
	return t.owned && p.given != nil && p.owner == (types.NamespacedName{})
}

func (p *player) deliveries() (resyncs int, names []string) {
	for _, call := range p.operator.Calls() {
		if call.Runtime != p.id {
			continue
		}
		if call.Batch.Events[0].Resync {
			resyncs++
		} else {
			names = append(names, call.Batch.Events[0].Watched.Name)
		}
	}
	return resyncs, names
}

func (p *player) observe(t *trial) {
	const calm = 3 * time.Second // Resyncs may be spread over some time.
	if p.operator == nil {
		return
	}
	if t.calm {
		<-time.After(calm)
	}

	ctx, cancel := context.WithTimeout(p.ctx, p.patience)
	defer cancel()

	for n := len(p.operator.Calls()); p.operator.WaitCalls(ctx, n) == nil; n++ {
		resyncs, names := p.deliveries()
		mayBeMore := resyncs > t.resyncs && !t.calm
		isEnough := resyncs == t.resyncs || mayBeMore
		isComplete := t.objects == nil || slices.Equal(names, t.objects)
		if isEnough && isComplete {
			return
		}
	}

	resyncs, names := p.deliveries()
	p.Fatalf("%s: the operator got %d resyncs and %v", t.what, resyncs, names)
}
