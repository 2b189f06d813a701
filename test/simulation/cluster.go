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
	"github.com/runtime-watcher/runtime-watcher/core/watch"
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
	watches  []watch.Watch
	webhook  bool
	unproved bool     // the webhook is removed, and no canary notices
	agents   []*agent // nil while one is down
	lives    []int
	turn     int
	only     *agent // the API server calls this one; nil: all in turn
}

// object is the state in etcd.
type object struct {
	version      int // counts commits, deletions included
	spec, status int
	uid          string
	exists       bool
	owner        string
	former       string       // owner
	until        int          // the last version of the former owner
	team         core.Manager // a label
}

// object returns the name of an object, which no other runtime has.
func (p *Plan) object(runtime, index int) string {
	return fmt.Sprintf("%s-object-%s%d", p.Runtimes[runtime].Name, strings.Repeat("x", p.Padding), index)
}

func newCluster(w *world, index int) *cluster {
	plan := &w.plan.Runtimes[index]
	c := &cluster{
		world: w, plan: plan, objects: make(map[string]*object), watches: w.plan.watches(),
		webhook: true, agents: make([]*agent, plan.Agents), lives: make([]int, plan.Agents),
	}
	for i := range plan.Objects {
		c.objects[w.plan.object(index, i)] = &object{
			version: 1, uid: fmt.Sprintf("first-%d", i), exists: true, owner: plan.owner(i), team: teamOf(i),
		}
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

// watch makes the API server call the webhook for one more manager, unless it does.
func (c *cluster) watch(manager core.Manager) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if more := watchOf(manager); more.Name != c.watches[len(c.watches)-1].Name {
		c.watches = append(c.watches, more)
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
		after := c.plan.after(before, uid, w.Kind)
		c.review(name, before, after, w)
		sleep(w.Delay)
		if w.Reject || w.Kind == DryRun || w.Kind == OtherManager {
			return
		}
		if c.commit(name, before, after, w, blind) {
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

// after returns the state of an object after a write.
func (r *RuntimePlan) after(o object, uid string, kind WriteKind) object {
	switch {
	case kind == Touch && o.exists: // No watched field changes.
		return o
	case kind == Delete:
		o.exists = false
	case !o.exists:
		o.exists, o.uid, o.spec = true, uid, o.spec+1
	case kind == Status:
		o.status++
	case kind == Relabel:
		o.team = nextTeam(o.team)
	case kind == Transfer && r.Owners > 1:
		o.former, o.until = o.owner, o.version
		o.owner = r.owner(slices.Index([]string{r.owner(1), r.owner(0)}, o.owner))
	default:
		o.spec++
	}
	o.version++
	return o
}

// commit reports false on a conflict.
func (c *cluster) commit(name string, before, after object, w Write, blind bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.objects[name]
	if *o != before {
		return false
	}
	*o = after
	for _, manager := range c.world.plan.watching(before, after) {
		c.world.history.Commit(c.plan.Name, name, manager, o.version, w.Delay, blind, w.Kind == Unreadable)
	}
	c.world.logf("commit %s version %d", name, o.version)
	return true
}

// review calls the webhooks concurrently, as an API server does with the configuration of the agent.
func (c *cluster) review(name string, before, after object, w Write) {
	c.mu.Lock()
	watches := slices.Clone(c.watches)
	c.mu.Unlock()
	for _, manager := range c.world.plan.watching(before, after) {
		if w.Kind != DryRun {
			c.world.history.Changes(name, manager)
		}
	}
	var calls sync.WaitGroup
	defer calls.Wait()
	for _, hook := range c.world.webhooks(watches) {
		served := slices.Contains(c.world.plan.Managers, hook.manager)
		if hook.matches(before, after) && (!served || w.Kind != OtherManager) {
			calls.Go(func() { c.call(hook.manager, c.body(name, before, after, w.Kind)) })
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
		before := object{owner: c.plan.Name}
		c.call(manager, c.body(c.world.plan.object(0, 0), before, c.plan.after(before, "", Update), Update))
	}
}

// body is an AdmissionReview.
func (c *cluster) body(name string, before, after object, kind WriteKind) string {
	if kind == Unreadable {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","object":{"broken":`
	}
	operation, oldObject, newObject := "UPDATE", "null", "null"
	if before.exists {
		oldObject = c.object(name, before, "")
	} else {
		operation = "CREATE"
	}
	if after.exists {
		newObject = c.object(name, after, kind)
	} else {
		operation = "DELETE"
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":`+
		`{"group":"example.com","version":"v1","kind":"Widget"},"name":%q,"namespace":"default","operation":%q,`+
		`"subResource":%q,"dryRun":%v,"oldObject":%s,"object":%s}}`,
		name, operation, subresource(before, after), kind == DryRun, oldObject, newObject)
}

func (c *cluster) object(name string, o object, kind WriteKind) string {
	owner := ownerNamespace + "/" + o.owner
	if kind == BadOwner {
		owner = "no owner at all"
	}
	return fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q,"namespace":"default",`+
		`"uid":%q,"resourceVersion":"%d","generation":%d,"annotations":{%q:%q},"labels":{%q:%q}},`+
		`"spec":{"version":%d,"bulk":%q},"status":{"version":%d}}`,
		name, o.uid, o.version, o.spec, core.OwnerAnnotation, owner, teamLabel, o.team,
		o.spec, strings.Repeat("x", c.plan.Bulk), o.status)
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
