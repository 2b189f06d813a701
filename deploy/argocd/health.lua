-- The health of a Watcher for Argo CD: that of its condition Ready, as kstatus and "kubectl wait" read it. It uses no library.
local health = {status = "Progressing", message = "the controller has not reported on this Watcher yet"}
local status = obj.status
if status == nil then
  return health
end

local generation = obj.metadata.generation
if status.observedGeneration ~= nil and generation ~= nil and status.observedGeneration < generation then
  health.message = "the controller has not reported on generation " .. generation .. " yet"
  return health
end

local ready = nil
for _, condition in ipairs(status.conditions or {}) do
  if condition.type == "Ready" then
    ready = condition
  end
end

-- A former controller writes the state alone.
if ready == nil then
  local known = {Ready = "Healthy", Warning = "Degraded", Error = "Degraded", Unmanaged = "Suspended"}
  local state = status.state or ""
  if state ~= "" then
    health.status = known[state] or "Progressing"
    health.message = "the state is " .. state
  end
  return health
end

health.message = ready.reason .. ": " .. (ready.message or "")
if ready.status == "True" then
  -- It may be the state Warning: the Watcher works without a condition of its spec, and the message names it.
  health.status = "Healthy"
elseif ready.status == "False" and ready.reason ~= "NotInstalled" then
  health.status = "Degraded"
end
return health
