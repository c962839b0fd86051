// Two faults that Vulkan's validation layer must report: a buffer of no bytes, and a buffer that is written twice with
// nothing between.
#include <stdio.h>
#include <stdlib.h>
#include <vulkan/vulkan.h>

static void check(VkResult result, const char *what) {
    if (result != VK_SUCCESS) {
        fprintf(stderr, "%s: %d\n", what, result);
        exit(1);
    }
}
#define CHECK(call) check(call, #call)

static VkDevice open(VkPhysicalDevice *physical) {
    VkApplicationInfo application = {VK_STRUCTURE_TYPE_APPLICATION_INFO};
    application.apiVersion = VK_API_VERSION_1_1;
    VkInstanceCreateInfo creation = {VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO};
    creation.pApplicationInfo = &application;
    VkInstance instance;
    CHECK(vkCreateInstance(&creation, NULL, &instance));
    uint32_t count = 1;
    vkEnumeratePhysicalDevices(instance, &count, physical);
    check(count == 1 ? VK_SUCCESS : VK_ERROR_UNKNOWN, "no device");
    float priority = 1;
    VkDeviceQueueCreateInfo queue = {VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO};
    queue.queueCount = 1;
    queue.pQueuePriorities = &priority;
    VkDeviceCreateInfo info = {VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO};
    info.queueCreateInfoCount = 1;
    info.pQueueCreateInfos = &queue;
    VkDevice device;
    CHECK(vkCreateDevice(*physical, &info, NULL, &device));
    return device;
}

static VkBuffer buffer(VkDevice device, VkDeviceSize bytes) {
    VkBufferCreateInfo info = {VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO};
    info.size = bytes;
    info.usage = VK_BUFFER_USAGE_TRANSFER_DST_BIT;
    VkBuffer buffer = VK_NULL_HANDLE;
    vkCreateBuffer(device, &info, NULL, &buffer);
    return buffer;
}

static void write_twice(VkDevice device) {
    VkBuffer target = buffer(device, 256);
    VkMemoryRequirements needs;
    vkGetBufferMemoryRequirements(device, target, &needs);
    VkMemoryAllocateInfo room = {VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO};
    room.allocationSize = needs.size;
    while (!(needs.memoryTypeBits >> room.memoryTypeIndex & 1)) room.memoryTypeIndex++;
    VkDeviceMemory memory;
    CHECK(vkAllocateMemory(device, &room, NULL, &memory));
    CHECK(vkBindBufferMemory(device, target, memory, 0));
    VkCommandPoolCreateInfo pooled = {VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO};
    VkCommandPool pool;
    CHECK(vkCreateCommandPool(device, &pooled, NULL, &pool));
    VkCommandBufferAllocateInfo one = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO};
    one.commandPool = pool;
    one.commandBufferCount = 1;
    VkCommandBuffer commands;
    CHECK(vkAllocateCommandBuffers(device, &one, &commands));
    VkCommandBufferBeginInfo begin = {VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO};
    CHECK(vkBeginCommandBuffer(commands, &begin));
    vkCmdFillBuffer(commands, target, 0, 256, 1);
    vkCmdFillBuffer(commands, target, 0, 256, 2);
    CHECK(vkEndCommandBuffer(commands));
}

int main(void) {
    VkPhysicalDevice physical;
    VkDevice device = open(&physical);
    buffer(device, 0);
    write_twice(device);
    return 0;
}
