package simulation

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runtime-watcher/runtime-watcher/core"
	"github.com/runtime-watcher/runtime-watcher/core/contract"
	"github.com/runtime-watcher/runtime-watcher/internal/canary"
)

// cluster is a runtime: a model of its API server with its etcd, and its agents.
type cluster struct {
	world *world
	plan  *RuntimePlan
	keys  keySet

	mu       sync.Mutex
	older    bool // new agents use contract v1
	objects  map[string]*object
	watchers []core.Manager
	webhook  bool
	unproved bool     // the webhook is removed, and no canary notices
	agents   []*agent // nil while one is down
	lives    []int
	turn     int
	only     *agent // the API server calls this one; nil: all in turn
}

// object is the state in etcd.
type object struct {
	version int // counts commits, deletions included
	uid     string
	exists  bool
	owner   string
}

// object returns the name of an object, which no other runtime has.
func (p *Plan) object(runtime, index int) string {
	return fmt.Sprintf("%s-object-%s%d", p.Runtimes[runtime].Name, strings.Repeat("x", p.Padding), index)
}

func newCluster(w *world, index int) *cluster {
	plan := &w.plan.Runtimes[index]
	c := &cluster{
		world: w, plan: plan, objects: make(map[string]*object), watchers: slices.Clone(w.plan.Managers),
		webhook: true, agents: make([]*agent, plan.Agents), lives: make([]int, plan.Agents),
	}
	for i := range plan.Objects {
		c.objects[w.plan.object(index, i)] = &object{version: 1, uid: fmt.Sprintf("first-%d", i), exists: true, owner: plan.owner(i)}
	}
	c.load(w.pki.clientKeys(plan.Name))
	for i := range w.plan.Faults {
		if f := &w.plan.Faults[i]; f.Kind == CertificateExpired && f.Runtime == index {
			c.expire(w.began.Add(f.At))
		}
	}
	return c
}

// otherOwner is the suffix of the second owner of a runtime.
const otherOwner = "-b"

// owner returns the name of the owner of an object.
func (r *RuntimePlan) owner(object int) string {
	if r.Owners > 1 && object%2 == 1 {
		return r.Name + otherOwner
	}
	return r.Label + r.Name
}

// contract returns the contract of a new agent.
func (c *cluster) contract() contract.Version {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.older {
		return contract.V1
	}
	return c.plan.Contract
}

// downgrade makes new agents use contract v1.
func (c *cluster) downgrade() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.older = true
}

// read returns all objects.
func (c *cluster) read() map[string]object {
	c.mu.Lock()
	defer c.mu.Unlock()
	objects := make(map[string]object, len(c.objects))
	for name, o := range c.objects {
		objects[name] = *o
	}
	return objects
}

func (c *cluster) watch(manager core.Manager) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.watchers, manager) {
		c.watchers = append(c.watchers, manager)
	}
}

// canaryMisses is the longest removal that a canary, which writes every 30 s, may not notice.
const canaryMisses = 31 * time.Second

func (c *cluster) removeWebhook(length time.Duration) (restore func()) {
	broken := c.world.history.Break(c.plan.Name, "webhook")
	c.setWebhook(false, !c.plan.Canary || length < canaryMisses)
	return func() {
		c.setWebhook(true, false)
		broken()
	}
}

func (c *cluster) setWebhook(on, unproved bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.webhook, c.unproved = on, unproved
}

// isBlind reports whether a write now reaches no agent, and no canary notices.
func (c *cluster) isBlind() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unproved
}

// endpoint returns the agent that the API server calls next, nil if there is none.
func (c *cluster) endpoint() *agent {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.webhook {
		return nil
	}
	if c.only != nil {
		return c.only
	}
	for range c.agents {
		c.turn++
		if a := c.agents[c.turn%len(c.agents)]; a != nil {
			return a
		}
	}
	return nil
}

// remind writes once for each agent, so that each learns its owners and managers.
func (c *cluster) remind(w Write) {
	c.mu.Lock()
	agents := slices.Clone(c.agents)
	c.mu.Unlock()
	for _, a := range agents {
		c.prefer(a)
		c.write(w)
	}
	c.prefer(nil)
}

// prefer makes the API server call one agent.
func (c *cluster) prefer(a *agent) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.only = a
}

// write calls the webhooks, commits after the delay, and repeats both after a conflict.
func (c *cluster) write(w Write) {
	name := c.world.plan.object(w.Runtime, w.Object)
	for {
		before := c.get(name)
		if w.Kind == Delete && !before.exists {
			w.Kind = Update // It creates the object again.
		}
		blind, uid := c.isBlind(), before.uid
		if !before.exists {
			uid = fmt.Sprintf("uid-%d", c.world.uids.Add(1))
		}
		c.review(name, before, uid, w)
		sleep(w.Delay)
		if w.Reject || w.Kind == DryRun || w.Kind == OtherManager {
			return
		}
		if c.commit(name, before, uid, w, blind) {
			return
		}
		w.Delay = time.Millisecond
	}
}

func (c *cluster) get(name string) object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return *c.objects[name]
}

// commit reports false on a conflict.
func (c *cluster) commit(name string, before object, uid string, w Write, blind bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[name]
	if *o != before {
		return false
	}
	if w.Kind == Touch && before.exists {
		return true // No watched field changes.
	}
	o.version++
	o.exists, o.uid = w.Kind != Delete, uid
	c.world.history.Commit(c.plan.Name, name, o.version, w.Delay, blind, w.Kind == Unreadable)
	c.world.logf("commit %s version %d", name, o.version)
	return true
}

// review calls the webhooks of all managers concurrently, as an API server does.
func (c *cluster) review(name string, before object, uid string, w Write) {
	c.mu.Lock()
	watchers := slices.Clone(c.watchers)
	c.mu.Unlock()
	if w.Kind != DryRun && (w.Kind != Touch || !before.exists) {
		c.world.history.Changes(name)
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, manager := range watchers {
		if i := slices.Index(c.world.plan.Managers, manager); i < 0 || w.Kind != OtherManager && c.world.plan.isWatched(w.Object, i) {
			calls.Go(func() { c.call(manager, c.body(name, before, uid, w.Kind)) })
		}
	}
}

// call sends a review to one agent, and checks the time of its answer. A call that fails changes nothing.
func (c *cluster) call(manager core.Manager, body string) {
	a := c.endpoint()
	if a == nil {
		return
	}
	started := time.Now()
	answer, err := a.ask(context.Background(), "/validate/"+string(manager), body)
	if err == nil && a.ranSince(started) {
		c.world.history.Answered(c.plan.Name, time.Since(started), answer)
	}
}

// ask is a call of the API server.
func (a *agent) ask(ctx context.Context, path, body string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, webhookTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://agent"+path, strings.NewReader(body))
	a.cluster.world.must(err)
	request.Header.Set("Content-Type", "application/json")
	answer, err := a.api.RoundTrip(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	return string(text), err
}

// invent calls the webhook for unknown managers.
func (c *cluster) invent(n int) {
	for i := range n {
		manager := core.Manager(fmt.Sprintf("invented-%d", i))
		c.call(manager, c.body(c.world.plan.object(0, 0), object{owner: c.plan.Name}, "", Update))
	}
}

// body is an AdmissionReview.
func (c *cluster) body(name string, before object, uid string, kind WriteKind) string {
	if kind == Unreadable {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"broken":`
	}
	operation, after := "UPDATE", before.version+1
	switch {
	case kind == Delete:
		operation = "DELETE"
	case !before.exists:
		operation = "CREATE"
	case kind == Touch:
		after = before.version
	}
	oldObject, newObject := "null", "null"
	if before.exists {
		oldObject = c.object(name, before, "")
	}
	if kind != Delete {
		newObject = c.object(name, object{version: after, uid: uid, owner: before.owner}, kind)
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":`+
		`{"group":"example.com","version":"v1","kind":"Widget"},"name":%q,"namespace":"default","operation":%q,`+
		`"dryRun":%v,"oldObject":%s,"object":%s}}`, name, operation, kind == DryRun, oldObject, newObject)
}

func (c *cluster) object(name string, o object, kind WriteKind) string {
	owner := ownerNamespace + "/" + o.owner
	if kind == BadOwner {
		owner = "no owner at all"
	}
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q,"namespace":"default",`+
		`"uid":%q,"resourceVersion":"%d","generation":%d,"annotations":{%q:%q}},"spec":{"version":%d,"bulk":%q}}`,
		name, o.uid, o.version, o.version, core.OwnerAnnotation, owner, o.version, strings.Repeat("x", c.plan.Bulk))
}

// ownerNamespace is that of the objects in the control plane which stand for runtimes.
const ownerNamespace = "kcp"

// lease is the object that the canary writes.
type lease struct {
	cluster *cluster
	writer  *agent
}

func (l lease) write(ctx context.Context, nonce string) ([]string, error) {
	l.writer.awaitResume()
	a := l.cluster.endpoint()
	if a == nil {
		return nil, ctx.Err()
	}
	text, err := a.ask(ctx, canary.Path, fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1",`+
		`"object":{"metadata":{"annotations":{%q:%q}}}}}`, "operator.kyma-project.io/canary-nonce", nonce))
	if err != nil {
		return nil, ctx.Err() // The write succeeds without the webhook.
	}
	var answer struct {
		Response struct {
			Warnings []string `json:"warnings"`
		} `json:"response"`
	}
	err = json.Unmarshal([]byte(text), &answer)
	return answer.Response.Warnings, err
}
